// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/program.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "profiler/saved/ivalues.h"
#include "profiler/saved/loss.h"
#include "search/files/error.h"

namespace ostinato {
namespace {

using torch::jit::Node;
using torch::jit::Value;
using Values = std::vector<c10::IValue>;

/// What a file is that torch::jit::load() does not read.
std::string what_else(const std::filesystem::path& path) {
  try {
    caffe2::serialize::PyTorchStreamReader archive(path.string());
    const std::vector<std::string> records = archive.getAllRecords();
    const auto any = [&](const std::string& part) {
      return std::any_of(records.begin(), records.end(),
                         [&](const std::string& name) { return name.find(part) != std::string::npos; });
    };
    if (any("constants.pkl")) return "";
    if (any("archive_format") || any("serialized_exported_program") || any("models/")) {
      return "is a torch.export archive, which the Python package profiles (python -m ostinato profile); "
             "from C++ "
             "save torch.jit.script(model)";
    }
    if (any("data.pkl")) {
      return "is a pickle of torch.save(), which needs its Python classes: save torch.jit.script(model) "
             "instead";
    }
    return "is an archive without a TorchScript program";
  } catch (const c10::Error&) {
    return "is no archive of torch's: save torch.jit.script(model)";
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// A call of a submodule or function, or an operator.
bool computes(const Node& node) {
  if (node.kind() == c10::prim::CallMethod || node.kind() == c10::prim::CallFunction) return true;
  return !node.kind().is_prim() &&
         std::any_of(node.outputs().begin(), node.outputs().end(), [](const Value* value) {
           return value->type()->isSubtypeOf(*c10::TensorType::get()) ||
                  value->type()->isSubtypeOf(*c10::ListType::ofTensors());
         });
}

std::string class_and_shapes(const torch::jit::Module& module) {
  std::string text = module.type()->name()->qualifiedName();
  for (const auto& attribute : module.named_attributes(/*recurse=*/true)) {
    if (!attribute.value.isModule()) text += attribute.name + "=" + shapes_of({attribute.value}) + ";";
  }
  return text;
}

c10::IValue list_of(const Node& node, const Values& items) {
  c10::impl::GenericList list(node.output()->type()->expectRef<c10::ListType>().getElementType());
  for (const c10::IValue& item : items) list.push_back(item);
  return list;
}

c10::IValue dict_of(const Node& node, const Values& items) {
  const auto& type = node.output()->type()->expectRef<c10::DictType>();
  c10::impl::GenericDict dict(type.getKeyType(), type.getValueType());
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) dict.insert_or_assign(items[i], items[i + 1]);
  return dict;
}

/// Lists, tuples and dictionaries are the interpreter's own business; what else there is are operators.
Values compute(const Node& node, Values stack) {
  if (node.kind() == c10::prim::ListConstruct) return {list_of(node, stack)};
  if (node.kind() == c10::prim::DictConstruct) return {dict_of(node, stack)};
  if (node.kind() == c10::prim::TupleConstruct) return {c10::ivalue::Tuple::create(std::move(stack))};
  if (node.kind() == c10::prim::TupleUnpack) return stack[0].toTupleRef().elements().vec();
  if (node.kind() == c10::prim::ListUnpack) {
    const c10::List<c10::IValue> list = stack[0].toList();
    return {list.begin(), list.end()};
  }
  node.getOperation()(stack);
  return stack;
}

/// Runs the program once and notes its steps.
class Tracer {
 public:
  Tracer(const std::string& file, const LoadOptions& options, SavedProgram& program)
      : file_(file), options_(options), program_(program) {
    for (const at::Tensor& parameter : program.module.parameters())
      trained_.insert(parameter.unsafeGetTensorImpl());
    for (const at::Tensor& buffer : program.module.buffers()) buffers_.insert(buffer.unsafeGetTensorImpl());
  }

  /// The result of a method whose first argument is its module. `prefix` names the submodules, "encoder."
  /// say.
  c10::IValue visit(const torch::jit::Method& method, Values arguments, const std::string& prefix, int level);

  /// A last step that reads what the program gives.
  void add_loss(const std::string& name, const c10::IValue& result);

 private:
  using Known = std::unordered_map<const Value*, c10::IValue>;

  void run_node(const Node& node, Known& known, const std::string& prefix, int level, bool alone);
  void call_method(const Node& node, Values inputs, Known& known, const std::string& prefix, int level,
                   bool alone);
  Values add_step(SavedStep step, Values inputs);
  TensorSource source_of(const at::Tensor& tensor) const;
  bool opens(const torch::jit::Method& method, int level, bool alone) const;

  const std::string& file_;
  const LoadOptions& options_;
  SavedProgram& program_;
  std::unordered_set<const c10::TensorImpl*> trained_, buffers_;
  std::unordered_map<const c10::TensorImpl*, TensorSource> sources_;
  std::unordered_set<const c10::TensorImpl*> reached_;  ///< gradients flow through them
  std::vector<at::Tensor> alive_;                       ///< so that no address is used twice
};

bool branches(const torch::jit::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node* node) { return !node->blocks().empty(); });
}

bool Tracer::opens(const torch::jit::Method& method, int level, bool alone) const {
  if (options_.depth) return level < *options_.depth;
  return alone && !branches(*method.graph());
}

c10::IValue Tracer::visit(const torch::jit::Method& method, Values arguments, const std::string& prefix,
                          int level) {
  const auto graph = method.graph();
  if (arguments.size() != graph->inputs().size()) {
    throw InputError(file_, 0,
                     "the program takes " + std::to_string(graph->inputs().size() - 1) + " inputs, and " +
                         std::to_string(arguments.size() - 1) + " were given");
  }
  Known known;
  for (std::size_t i = 0; i < arguments.size(); ++i) known[graph->inputs()[i]] = arguments[i];
  const auto steps = std::count_if(graph->nodes().begin(), graph->nodes().end(),
                                   [](const Node* node) { return computes(*node); });
  for (const Node* node : graph->nodes()) {
    if (!node->blocks().empty()) {
      throw InputError(file_, 0,
                       "the forward of " + (prefix.empty() ? "the program" : prefix) +
                           " branches on values (" + node->kind().toQualString() +
                           "): put what branches into a submodule of its own, which is measured as a whole");
    }
    run_node(*node, known, prefix, level, steps == 1);
  }
  return known.at(graph->outputs()[0]);
}

void Tracer::run_node(const Node& node, Known& known, const std::string& prefix, int level, bool alone) {
  if (node.kind() == c10::prim::Constant) {
    if (const auto value = torch::jit::toIValue(node.output())) known[node.output()] = *value;
    return;  // a function: its calls know it by its type
  }
  if (node.kind() == c10::prim::GetAttr) {
    known[node.output()] = known.at(node.input()).toObjectRef().getAttr(node.s(c10::attr::name));
    return;
  }
  Values inputs;
  for (const Value* input : node.inputs()) {
    if (const auto found = known.find(input); found != known.end()) inputs.push_back(found->second);
  }
  if (node.kind() == c10::prim::CallMethod) return call_method(node, inputs, known, prefix, level, alone);
  SavedStep step;
  if (node.kind() == c10::prim::CallFunction) {
    torch::jit::Function* function = node.inputs()[0]->type()->expectRef<c10::FunctionType>().function();
    step.name = prefix + function->name();
    step.run = [function](Values values) { return Values{(*function)(std::move(values))}; };
  } else {
    step.name = node.kind().toQualString();
    step.run = [&node](Values stack) {
      return compute(node, std::move(stack));
    };  // the module keeps its graph
  }
  step.identity = step.name;
  const Values outputs = computes(node) ? add_step(std::move(step), inputs) : step.run(inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) known[node.outputs()[i]] = outputs[i];
}

void Tracer::call_method(const Node& node, Values inputs, Known& known, const std::string& prefix, int level,
                         bool alone) {
  const torch::jit::Module module(inputs[0].toObject());
  const std::string method_name = node.s(c10::attr::name);
  const auto method = module.get_method(method_name);
  const Node* from = node.inputs()[0]->node();
  const std::string own = from->kind() == c10::prim::GetAttr ? from->s(c10::attr::name) : "self";
  const std::string name = prefix + own + (method_name == "forward" ? "" : "." + method_name);
  if (opens(method, level, alone)) {
    known[node.output()] = visit(method, std::move(inputs), name + ".", level + 1);
    return;
  }
  SavedStep step;
  step.name = name;
  step.identity = class_and_shapes(module) + method_name;
  for (const at::Tensor& parameter : module.parameters()) step.parameters.push_back(parameter);
  for (const at::Tensor& buffer : module.buffers()) step.buffers.push_back(buffer);
  step.run = [function = &method.function()](Values values) {
    return Values{(*function)(std::move(values))};
  };
  known[node.output()] = add_step(std::move(step), std::move(inputs))[0];
}

void Tracer::add_loss(const std::string& name, const c10::IValue& result) {
  SavedStep step;
  step.name = step.identity = "loss (" + name + ")";
  const std::vector<at::Tensor> outputs = tensors_of({result});
  step.run = [loss = make_loss(name, outputs)](Values values) { return Values{loss(tensors_of(values))}; };
  add_step(std::move(step), {outputs.begin(), outputs.end()});
}

TensorSource Tracer::source_of(const at::Tensor& tensor) const {
  const auto found = sources_.find(tensor.unsafeGetTensorImpl());
  return found == sources_.end() ? TensorSource{} : found->second;
}

Values Tracer::add_step(SavedStep step, Values inputs) {
  const int index = static_cast<int>(program_.steps.size());
  step.name = std::to_string(index) + ":" + step.name;
  for (const at::Tensor& tensor : tensors_of(inputs)) {
    step.sources.push_back(source_of(tensor));
    step.takes_gradient = step.takes_gradient || reached_.contains(tensor.unsafeGetTensorImpl());
    if (trained_.contains(tensor.unsafeGetTensorImpl())) step.parameters.push_back(tensor);
    if (buffers_.contains(tensor.unsafeGetTensorImpl())) step.buffers.push_back(tensor);
  }
  Values outputs;
  try {
    outputs = step.run(inputs);
  } catch (const std::exception& error) {
    throw InputError(file_, 0, "step " + step.name + " raised: " + first_line(error.what()));
  }
  const bool learns = std::any_of(step.parameters.begin(), step.parameters.end(),
                                  [](const at::Tensor& parameter) { return parameter.requires_grad(); });
  int number = 0;
  for (const at::Tensor& tensor : tensors_of(outputs)) {
    sources_[tensor.unsafeGetTensorImpl()] = {index, number++};
    if ((learns || step.takes_gradient) && tensor.is_floating_point())
      reached_.insert(tensor.unsafeGetTensorImpl());
    alive_.push_back(tensor);
  }
  step.output_bytes = bytes_of(tensors_of(outputs));
  step.identity += "|" + shapes_of(inputs) + (step.takes_gradient ? "|gradient" : "");
  step.inputs = std::move(inputs);
  program_.steps.push_back(std::move(step));
  return outputs;
}

}  // namespace

bool is_state(const SavedStep& step, const at::Tensor& tensor) {
  const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
  return std::any_of(step.parameters.begin(), step.parameters.end(), same) ||
         std::any_of(step.buffers.begin(), step.buffers.end(), same);
}

SavedProgram load_program(const std::filesystem::path& path, const std::vector<at::Tensor>& inputs,
                          const LoadOptions& options) {
  const std::string file = path.string();
  if (!std::filesystem::exists(path)) throw InputError(file, 0, "no such file");
  if (const std::string other = what_else(path); !other.empty()) throw InputError(file, 0, other);
  SavedProgram program;
  try {
    program.module = torch::jit::load(file);
  } catch (const c10::Error& error) {
    throw InputError(file, 0,
                     "cannot be loaded as TorchScript: " + first_line(error.what_without_backtrace()));
  }
  program.module.train(options.train);
  torch::jit::getExecutorMode() = false;  // operators as they are written: nothing is fused or recompiled
  torch::jit::setGraphExecutorOptimize(false);
  const auto forward = program.module.find_method("forward");
  if (!forward) throw InputError(file, 0, "the program has no method forward");
  std::vector<c10::IValue> arguments = {program.module._ivalue()};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  {
    const at::NoGradGuard no_gradients;
    Tracer tracer(file, options, program);
    const c10::IValue result = tracer.visit(*forward, arguments, "", 0);
    if (!options.loss.empty() && !program.steps.empty()) tracer.add_loss(options.loss, result);
  }
  if (program.steps.empty()) throw InputError(file, 0, "the program runs no operators");
  return program;
}

}  // namespace ostinato
