// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "bindings/core/numbers.h"
#include "bindings/core/usage_error.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/placement/placement_check.h"
#include "search/profile/profile_json.h"

namespace ostinato::core {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr int kMostDevices = 65'536;

Objective objective_of(const std::string& name) {
  for (const Objective objective : {Objective::span, Objective::latency}) {
    if (name == to_string(objective)) return objective;
  }
  return Objective::makespan;
}

/// What `partition` and `plan` ask alike.
PartitionOptions partition_options(const Options& options, PartitionOptions on, int micro_batches) {
  on.micro_batches = micro_batches;
  on.split_backward = options.flag("split_backward");
  on.inference = options.flag("inference");
  if (on.inference && on.split_backward)
    throw UsageError("--split-backward cannot be combined with --inference, which has no backward");
  on.allow_incomplete = options.flag("allow_incomplete");
  return on;
}

/// For a latency a device more may well make it longer: whoever asks for them there wants their memory.
FewerDevices fewer_devices(const Options& options, Objective objective) {
  if (options.flag("fewer_devices") && options.flag("all_devices"))
    throw UsageError("--fewer-devices and --all-devices exclude each other");
  if (options.flag("fewer_devices")) return FewerDevices::every;
  const bool none = options.flag("all_devices") || objective == Objective::latency;
  return none ? FewerDevices::none : FewerDevices::some;
}

/// Those that the profile marks; what the user names must be among them, or the training would refuse it.
std::vector<int> may_be_sharded(const Profile& profile, const std::string& named) {
  for (const int layer : find_layers(profile, named)) {
    if (!profile.layers[layer].shardable)
      throw InputError(
          "", 0,
          fmt::format("--shard: layer \"{}\" cannot be divided: only nn.Embedding, nn.Linear and classes "
                      "with sharded(shard) can. Make it several LayerSpecs, of which one is its large "
                      "nn.Linear, or give its class sharded(shard), and profile again",
                      profile.layers[layer].name));
  }
  return shardable_layers(profile);
}

/// Why there is nothing of the kind to try; "" where there may be.
std::string why_nothing(const std::string& feature, const Profile& profile, const JointOptions& wanted) {
  const auto& layers = profile.layers;
  const bool graph =
      std::any_of(layers.begin(), layers.end(), [](const LayerCost& l) { return l.after.has_value(); });
  const bool halves =
      std::any_of(layers.begin(), layers.end(), [](const LayerCost& l) { return l.halves(); });
  if (feature == "shards" && wanted.shardable.empty()) return "no layer of the profile can be sharded";
  if (feature == "branches" && !graph) return "the model of the profile is a chain";
  if (feature == "lanes" && !has_lanes(profile, {})) return "the profile has no layer on a lane";
  if (feature == "split" && !halves) return "the profile has no split backwards";
  return "";
}

/// `reason`: the option that leaves it out.
void leave_out(const std::string& feature, const std::string& reason, JointOptions& wanted) {
  if (feature == "chunks") wanted.restrictions.push_back({Rule::most_chunks, reason, 1});
  if (feature == "split") wanted.restrictions.push_back({Rule::whole_backwards, reason});
  if (feature == "shards") wanted.restrictions.push_back({Rule::no_shards, reason});
  if (feature == "recompute") wanted.recompute = false;
  if (feature == "branches") wanted.graph = false;
  if (feature == "lanes") wanted.partition.lanes = LanesOf::none;
  if (feature == "moves") wanted.moves = false;
  if (feature == "fewer-devices") wanted.fewer_devices = FewerDevices::none;
}

int number_or_auto(const Options& options, const char* key, int any) {
  return options.text(key) == "auto" ? any : static_cast<int>(options.integer(key));
}

/// By --without, --only, --exact-losses, --max-chunks and --fixed-ends.
void leave_out(const Options& options, JointOptions& wanted) {
  const std::vector<std::string> only = words_of(options.text("only")),
                                 without = words_of(options.text("without"));
  if (!only.empty() && !without.empty()) throw UsageError("--only and --without exclude each other");
  for (const std::string& feature : without) leave_out(feature, "--without " + feature, wanted);
  for (const std::string& feature : options.choices("only")) {
    if (!only.empty() && std::find(only.begin(), only.end(), feature) == only.end())
      leave_out(feature, "--only " + options.text("only"), wanted);
  }
  if (options.flag("exact_losses"))
    for (const char* feature : {"split", "shards"}) leave_out(feature, "--exact-losses", wanted);
  if (const int most = static_cast<int>(options.integer("max_chunks")); most < kMostChunks)
    wanted.restrictions.push_back({Rule::most_chunks, fmt::format("--max-chunks {}", most), most});
  if (options.flag("fixed_ends")) wanted.restrictions.push_back({Rule::fixed_ends, "--fixed-ends"});
}

void refuse_forbidden(const Options& options, const Restrictions& restrictions) {
  const auto refuse = [&](bool asked, const char* option, Rule rule) {
    const Restriction* forbids = find_rule(restrictions, rule);
    if (asked && forbids != nullptr)
      throw UsageError(forbids->reason.starts_with("--")
                           ? fmt::format("{} and {} exclude each other", option, forbids->reason)
                           : fmt::format("{} is not possible: {}", option, forbids->reason));
  };
  refuse(options.flag("split_backward"), "--split-backward", Rule::whole_backwards);
  refuse(!options.text("shard").empty(), "--shard", Rule::no_shards);
}

/// Where --only leaves nothing beside one chunk per device.
void refuse_nothing(const Options& options, const Profile& profile, const JointOptions& wanted) {
  const std::vector<std::string> only = words_of(options.text("only"));
  std::vector<std::string> nothing;
  for (const std::string& feature : only)
    if (const std::string why = why_nothing(feature, profile, wanted); !why.empty()) nothing.push_back(why);
  if (!only.empty() && nothing.size() == only.size())
    throw UsageError(fmt::format("--only {} leaves nothing to try: {}", fmt::join(only, ","),
                                 fmt::join(nothing, ", and ")));
}

}  // namespace

SearchOptions search_options(const Options& options, int micro_batches) {
  SearchOptions result;
  result.micro_batches = micro_batches;
  result.objective = objective_of(options.text("objective"));
  result.time_limit_seconds = static_cast<double>(options.scaled("time_limit", kMillion)) / kMillion;
  const std::int64_t threads = options.integer("threads");
  const unsigned all = std::max(1u, std::thread::hardware_concurrency());
  result.threads = static_cast<int>(threads == 0 ? all : threads);
  result.seed = static_cast<std::uint64_t>(options.integer("seed"));
  result.effort = static_cast<int>(options.integer("effort"));
  result.method = options.text("method");
  result.robust_ppm = options.scaled("robust", kMillion);
  if (result.robust_ppm > 0 && result.objective != Objective::makespan)
    throw UsageError("--robust is about the makespan: it cannot be combined with --objective");
  if (result.robust_ppm > 0 && result.method != "auto")
    throw UsageError("--method asks for one known schedule: it cannot be combined with --robust");
  return result;
}

UnequalOptions unequal_options(const SearchOptions& options) {
  UnequalOptions wanted;
  wanted.work = wanted.work / 100 * std::max(1, options.effort);
  wanted.seed = options.seed;
  wanted.time_limit_seconds = options.time_limit_seconds;
  wanted.stop = options.stop;
  return wanted;
}

SimulateOptions simulate_options(const Options& options) {
  SimulateOptions result;
  result.jitter_ppm = options.scaled("jitter", kMillion);
  result.unequal_ppm = options.scaled("unequal", kMillion);
  result.transfer_ppm = options.scaled("transfer_factor", kMillion);
  result.seed = static_cast<std::uint64_t>(options.integer("seed"));
  result.runs = static_cast<int>(options.integer("runs"));
  return result;
}

PartitionOptions on_devices(int count, const std::string& memory) {
  if (count < 1 || count > kMostDevices)
    throw UsageError(fmt::format("--devices needs {}, got {}", whole_number_text(1, kMostDevices), count));
  PartitionOptions result;
  result.devices = count;
  result.device_memory = memory_of("--device-memory", memory);
  return result;
}

PartitionOptions on_shared_cores(int count, const std::string& memory,
                                 const std::vector<SharedCores>& hosts) {
  PartitionOptions result = on_devices(count, memory);
  Cluster cluster = alike(count, result.device_memory);
  cluster.nodes.clear();
  cluster.devices.clear();
  for (const auto& [devices, cores] : hosts) {
    if (devices < 1 || cores < 1) throw UsageError("a host needs at least one device and one core");
    cluster.devices.insert(cluster.devices.end(), static_cast<std::size_t>(devices),
                           {.kind = 0, .node = static_cast<int>(cluster.nodes.size())});
    cluster.nodes.push_back(
        {.name = fmt::format("node{}", cluster.nodes.size()), .link = {}, .cores = cores});
    if (cluster.devices.size() > static_cast<std::size_t>(kMostDevices)) break;
  }
  if (cluster.devices.size() != static_cast<std::size_t>(count))
    throw UsageError(
        fmt::format("the hosts have {}, not {}", counted(cluster.devices.size(), "device"), count));
  result.cluster = std::move(cluster);
  return result;
}

PartitionOptions on_cluster(Cluster cluster, const std::string& memory) {
  if (memory_of("--device-memory", memory) != kUnlimited)
    throw UsageError(
        "--device-memory cannot be combined with a device file, which gives each kind its memory");
  for (DeviceKind& kind : cluster.kinds) {
    if (!kind.profile_path.empty())
      kind.profile = std::make_shared<const Profile>(read_profile(kind.profile_path));
  }
  PartitionOptions result;
  result.devices = static_cast<int>(cluster.devices.size());
  result.cluster = std::move(cluster);
  return result;
}

PartitionOptions cut_options(const Options& options, PartitionOptions on, int micro_batches,
                             const Profile& profile) {
  PartitionOptions wanted = partition_options(options, std::move(on), micro_batches);
  wanted.chunks = static_cast<int>(options.integer("chunks"));
  wanted.layout = options.text("layout") == "wave" ? ChunkLayout::wave : ChunkLayout::looped;
  const std::string& recompute = options.text("recompute");
  if (recompute == "needed") wanted.recompute = Recompute::needed;
  if (recompute == "partly") wanted.recompute = Recompute::partly;
  if (recompute == "always") wanted.recompute = Recompute::always;
  if (wanted.inference && wanted.recompute != Recompute::never)
    throw UsageError("--recompute cannot be combined with --inference, which has no backward");
  if (wanted.micro_batches == 0) {
    const std::int64_t stages = static_cast<std::int64_t>(wanted.devices) * wanted.chunks;
    wanted.micro_batches = static_cast<int>(std::clamp<std::int64_t>(stages, 1, 1 << 20));
  }
  if (options.text("stages") == "graph" && wanted.chunks > 1)
    throw UsageError("--chunks cannot be combined with --stages graph, which makes one stage per device");
  wanted.sharded = find_layers(profile, options.text("shard"));
  return wanted;
}

JointOptions joint_options(const Options& options, PartitionOptions on, int micro_batches,
                           const Profile& profile) {
  if (micro_batches < 1)
    throw UsageError(fmt::format("--micro-batches needs {}, got {}", whole_number_text(1, kMostMicroBatches),
                                 micro_batches));
  JointOptions wanted;
  wanted.search = search_options(options, micro_batches);
  wanted.partition = partition_options(options, std::move(on), micro_batches);
  const std::int64_t blocks =
      cluster_of(wanted.partition).devices.size() * (wanted.partition.inference ? 1 : 2);
  if (blocks * micro_batches > kMostSteps)
    throw UsageError(fmt::format("--micro-batches {} on {} makes at least {}; at most {} can be planned",
                                 micro_batches, counted(blocks, "block"),
                                 counted(blocks * micro_batches, "step"), kMostSteps));
  wanted.fewer_devices = fewer_devices(options, wanted.search.objective);
  wanted.restrictions = profile.restrictions;
  leave_out(options, wanted);
  refuse_forbidden(options, wanted.restrictions);
  const Restriction* chunks = find_rule(wanted.restrictions, Rule::most_chunks);
  if (chunks != nullptr && chunks->chunks == 1)
    wanted.partition.lanes = LanesOf::none;  // which make several stages
  if (find_rule(wanted.restrictions, Rule::no_shards) == nullptr)
    wanted.shardable = may_be_sharded(profile, options.text("shard"));
  refuse_nothing(options, profile, wanted);
  wanted.replicas = number_or_auto(options, "replicas", kAnyReplicas);
  if (!options.text("slices").empty()) wanted.slices = number_or_auto(options, "slices", kAnySlices);
  return wanted;
}

std::vector<SlicedProfile> sliced_options(const Options& options, const PartitionOptions& on,
                                          int micro_batches, const std::vector<Profile>& profiles) {
  std::vector<SlicedProfile> all;
  for (const Profile& profile : profiles) {
    JointOptions wanted = joint_options(options, on, micro_batches, profile);
    if (profiles.size() > 1 && wanted.slices == kSlicesAside) wanted.slices = kAnySlices;
    all.push_back({&profile, std::move(wanted)});
  }
  return all;
}

void check_size(const Placement& placement, int micro_batches, const std::string& file) {
  check_totals(placement, micro_batches, file);
  const std::int64_t steps = static_cast<std::int64_t>(placement.blocks.size()) * micro_batches;
  if (steps <= kMostSteps) return;
  throw InputError(
      file, 0,
      fmt::format("{} in {} make {}; at most {} can be planned, which is {} of this placement",
                  counted(placement.blocks.size(), "block"), counted(micro_batches, "micro-batch"),
                  counted(steps, "step"), kMostSteps,
                  counted(kMostSteps / static_cast<std::int64_t>(placement.blocks.size()), "micro-batch")));
}

}  // namespace ostinato::core
