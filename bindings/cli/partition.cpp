// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/option_set.h"
#include "bindings/cli/partition_graph.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/core/partitioned.h"
#include "bindings/core/requests.h"
#include "search/files/file.h"

namespace ostinato::cli {

int partition_command(const std::vector<std::string>& args, Io& io) {
  if (asks_for_graph(args)) return partition_graph_command(args, io);
  CommandLine line("partition",
                   "Splits a profiled model into stages and places them on devices, so that the busiest "
                   "device has as little work as possible and the stages fit every device's memory.\nFor "
                   "the options of an operator graph (GRAPH.csv): ostinato partition --strategy best --help",
                   "partition profile.json --devices 4 --chunks 2 --layout wave --device-memory 40GiB "
                   "--output placement.toml");
  std::string output;
  ProfileArguments arguments(line, MicroBatches::as_stages);
  OptionSet options(line, {"partition"});
  line.text("--output", output, "Placement file to write (TOML)").required().type_name("PLACEMENT");
  line.may_be_quiet();
  if (!line.parse(args, io)) return 0;
  options.resolve();
  const PartitionOptions on = arguments.on(options, io);
  const Profile profile = read_times(arguments.profile, io);
  const PartitionOptions wanted = cut_options(options, on, arguments.micro_batches, profile);
  check_times(profile, wanted, arguments.profile, io);
  check_apart({{"--output", output}}, {arguments.profile, arguments.devices, options.file()});
  check_can_write(output);
  const Partitioned cut = partition_profile(profile, wanted, options.text("stages") == "graph");
  write_file(output, cut.text);
  if (line.json) {
    Json object = {{"status", 0}, {"output", output}};
    object.update(partition_json(cut, profile));
    print_json(object, io);
  } else {
    io.say(partition_text(cut) + "  written to " + output + "\n" +
           whole_backward_lines(profile, wanted, cut.cuts.stages));
  }
  return 0;
}

}  // namespace ostinato::cli
