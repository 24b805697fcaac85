// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/ivalues.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace ostinato {
namespace {

using Change = std::function<at::Tensor(const at::Tensor&)>;

c10::IValue map_list(const c10::List<c10::IValue>& list, const Change& change) {
  c10::List<c10::IValue> mapped(list.elementType());
  for (const c10::IValue& item : list) mapped.push_back(map_tensors(item, change));
  return mapped;
}

c10::IValue map_tuple(const c10::ivalue::Tuple& tuple, const Change& change) {
  std::vector<c10::IValue> items;
  for (const c10::IValue& item : tuple.elements()) items.push_back(map_tensors(item, change));
  return c10::ivalue::Tuple::create(std::move(items));
}

c10::IValue map_dict(const c10::Dict<c10::IValue, c10::IValue>& dict, const Change& change) {
  c10::Dict<c10::IValue, c10::IValue> mapped(dict.keyType(), dict.valueType());
  for (const auto& item : dict) mapped.insert(item.key(), map_tensors(item.value(), change));
  return mapped;
}

}  // namespace

c10::IValue map_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTuple()) return map_tuple(value.toTupleRef(), change);
  if (value.isList()) return map_list(value.toList(), change);
  if (value.isGenericDict()) return map_dict(value.toGenericDict(), change);
  return value;
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> found;
  const auto note = [&](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  };
  for (const c10::IValue& value : values) map_tensors(value, note);
  return found;
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  std::map<const void*, Bytes> by_memory;
  for (const at::Tensor& tensor : tensors) {
    Bytes& bytes = by_memory[tensor.storage().data()];
    bytes = std::max(bytes, static_cast<Bytes>(tensor.nbytes()));
  }
  Bytes total = 0;
  for (const auto& [memory, bytes] : by_memory) total += bytes;
  return total;
}

std::string shapes_of(const std::vector<c10::IValue>& values) {
  std::ostringstream text;
  for (const c10::IValue& value : values) {
    if (!value.isTensor() && tensors_of({value}).empty()) {
      if (value.isObject()) continue;  // the step's own module, which is compared by its class
      text << value << ';';
    }
    for (const at::Tensor& tensor : tensors_of({value})) {
      text << tensor.sizes() << tensor.scalar_type() << tensor.requires_grad() << ';';
    }
  }
  return text.str();
}

}  // namespace ostinato
