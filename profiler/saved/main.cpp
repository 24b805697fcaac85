// SPDX-License-Identifier: Apache-2.0
// ostinato-profile: the profile of a saved TorchScript program, without Python (program.h, saved_profile.h).

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <exception>
#include <iostream>
#include <optional>

#include "profiler/saved/loss.h"
#include "profiler/saved/sample_input.h"
#include "profiler/saved/saved_profile.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace {

using namespace ostinato;

constexpr int kInternal = 1, kUsage = 2, kBadInput = 3, kCheckFailed = 6;

struct Arguments {
  std::string model, output = "profile.json";
  std::vector<std::string> inputs;
  int depth = -1;
  bool evaluate = false;
  std::string loss;
  std::optional<double> latency, bandwidth;
  SavedProfileOptions options;
};

void declare(CLI::App& app, Arguments& arguments) {
  SavedProfileOptions& options = arguments.options;
  app.add_option("model", arguments.model, "The program, from torch.jit.save()")
      ->required()
      ->type_name("MODEL.pt");
  app.add_option("--input", arguments.inputs,
                 "Shape of an input, in order: 8x128:int64:50257 (sizes, type, bound)")
      ->required()
      ->type_name("SHAPE[:TYPE[:BELOW]]");
  app.add_option("-o,--output", arguments.output, "Where the profile goes")->capture_default_str();
  app.add_option("--repeats", options.repeats, "Measurements of each step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.warm_up, "Rounds before them that do not count")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--depth", arguments.depth,
                 "Levels of submodules to look into (default: to where one calls several)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--kind", options.kind, "Kind of the device, as a placement's devices name it")
      ->capture_default_str();
  app.add_option("--optimizer-numbers", options.optimizer_numbers,
                 "fp32 numbers that the optimizer keeps for each parameter: 2 for Adam, 0 for SGD")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--loss", arguments.loss,
         "What training does with the output, as a last step with made-up labels (default: the output's own "
         "gradient is given)")
      ->check(CLI::IsMember(loss_names()));
  app.add_option("--latency", arguments.latency,
                 "Of a transfer between two devices, for the profile's transfers")
      ->check(CLI::NonNegativeNumber)
      ->type_name("US");
  app.add_option("--bandwidth", arguments.bandwidth, "Of such a transfer, in 10^9 bytes per second")
      ->check(CLI::PositiveNumber)
      ->type_name("GB/S");
  app.add_flag("--eval", arguments.evaluate, "Run the program as in evaluation, not as in training");
}

int micro_batch_size(const std::vector<at::Tensor>& inputs) {
  return inputs[0].dim() > 0 ? static_cast<int>(inputs[0].size(0)) : 1;
}

/// Empty where nothing was said: a placement made from the profile has free transfers then.
std::optional<Link> link_of(const Arguments& arguments) {
  if (!arguments.latency && !arguments.bandwidth) return std::nullopt;
  Link link;
  link.latency = std::llround(arguments.latency.value_or(0) * 1e3);
  link.bytes_per_second = std::llround(arguments.bandwidth.value_or(0) * 1e9);
  return link;
}

void show_progress(int done, int all) {
  if (isatty(STDERR_FILENO) != 0)
    std::cerr << "\rsteps " << done << " of " << all << (done == all ? "\n" : "") << std::flush;
}

int run(Arguments& arguments) {
  std::vector<at::Tensor> inputs;
  for (const std::string& words : arguments.inputs) inputs.push_back(sample_input(words));
  LoadOptions how{.depth = std::nullopt, .train = !arguments.evaluate};
  if (arguments.depth >= 0) how.depth = arguments.depth;
  how.loss = arguments.loss;
  const SavedProgram program = load_program(arguments.model, inputs, how);
  arguments.options.name = std::filesystem::path(arguments.model).stem().string();
  arguments.options.micro_batch_size = micro_batch_size(inputs);
  arguments.options.link = link_of(arguments);
  const Profile profile = profile_program(program, arguments.options, show_progress);
  write_file(arguments.output, format_profile(profile));
  std::cout << profile.layers.size() << " steps, "
            << (profile.completeness.complete ? "complete" : "NOT complete: " + profile.completeness.reason)
            << "\nwrote " << arguments.output << '\n';
  if (const std::string warning = noise_warning(profile); !warning.empty())
    std::cerr << "warning: " << warning << '\n';
  return profile.completeness.complete ? 0 : kCheckFailed;
}

}  // namespace

int main(int count, char** words) {
  CLI::App app(
      "Measures what the steps of a saved TorchScript program cost: each submodule that it calls, and each "
      "operator "
      "beside them, with its branches. Nothing of Python is needed. Exit status 6: the profile is not "
      "complete.");
  app.footer("Example:\n  ostinato-profile model.pt --input 8x128:int64:50257 --output profile.json");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(count, words);
    return run(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const std::invalid_argument& error) {
    std::cerr << "ostinato-profile: " << error.what() << '\n';
    return kUsage;
  } catch (const InputError& error) {
    std::cerr << "ostinato-profile: " << error.what() << '\n';
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "ostinato-profile: " << error.what() << '\n';
    return kInternal;
  }
}
