// SPDX-License-Identifier: Apache-2.0
#include "search/profile/cluster_toml.h"

#include <fmt/format.h>

#include <unordered_map>

#include "search/files/file.h"
#include "search/files/toml_values.h"
#include "search/files/unit_field.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr std::string_view kFormat = "ostinato-devices/1";

class ClusterReader {
 public:
  explicit ClusterReader(const std::string& file) : file_(file) {}

  Cluster read(const Value& root);

 private:
  std::optional<Link> link(const Fields& root, std::string_view key) const;
  Link link_of(const Fields& fields) const;
  Bytes memory(const Fields& fields) const;
  void kind(const Value& value);
  void nodes(const Value& value);
  int kind_of(const Fields& fields) const;

  const std::string& file_;
  Cluster cluster_;
  std::int64_t time_factor_ = 1;
  std::optional<std::int64_t> memory_factor_;  // without one each amount has its unit: "40GiB"
  std::unordered_map<std::string, int> kind_lines_, node_lines_;
};

Cluster ClusterReader::read(const Value& root) {
  check_format(root, file_, kFormat);
  const Fields fields(root, file_, "a device file",
                      {"format", "name", "time_unit", "memory_unit", "within", "between", "kinds", "nodes"});
  cluster_.name = fields.text_or("name", "");
  time_factor_ = unit_field(fields, "time_unit", kTimeUnits, "us");
  if (fields.find("memory_unit") != nullptr)
    memory_factor_ = unit_field(fields, "memory_unit", kMemoryUnits, "B");
  cluster_.within = link(fields, "within");
  cluster_.between = link(fields, "between");
  for (const Value& value : fields.need("kinds", ValueKind::array).items) kind(value);
  if (cluster_.kinds.empty()) fields.fail(nullptr, "no [[kinds]]: there must be at least one kind of device");
  for (const Value& value : fields.need("nodes", ValueKind::array).items) nodes(value);
  if (cluster_.devices.empty()) fields.fail(nullptr, "no [[nodes]]: there must be at least one device");
  return std::move(cluster_);
}

std::optional<Link> ClusterReader::link(const Fields& root, std::string_view key) const {
  const Value* value = root.find(key);
  if (value == nullptr) return std::nullopt;
  return link_of(Fields(*value, file_, in_quotes(key), {"latency", "bandwidth"}));
}

Link ClusterReader::link_of(const Fields& fields) const {
  return {.latency = fields.scaled("latency", time_factor_, 0, 0),
          .bytes_per_second = fields.scaled("bandwidth", kGigabyte, 0, 0)};
}

Bytes ClusterReader::memory(const Fields& fields) const {
  const Value* value = fields.find("memory");
  if (value == nullptr) return kUnlimited;
  if (value->kind == ValueKind::text) {
    const std::optional<Bytes> bytes = parse_memory(value->text, "");
    if (!bytes)
      fields.fail(value, "'memory' is " + in_quotes(value->text) + "; an amount has a unit: \"40GiB\"");
    return *bytes;
  }
  if (!memory_factor_)
    fields.fail(value,
                "'memory' has no unit: write \"40GiB\", or memory_unit = \"GiB\" at the top of the file");
  return fields.scaled("memory", *memory_factor_, 0, kUnlimited);
}

void ClusterReader::kind(const Value& value) {
  const Fields fields(value, file_, "[[kinds]]", {"name", "memory", "speed", "profile"});
  DeviceKind kind;
  kind.name = fields.text("name");
  kind.memory = memory(fields);
  kind.speed = fields.scaled("speed", kUsualSpeed, 0, kUsualSpeed);
  kind.profile_path = fields.text_or("profile", "");
  if (kind.speed == 0) fields.fail(fields.find("speed"), "'speed' must be above 0: 0.5 takes twice as long");
  const auto [first, is_new] = kind_lines_.emplace(kind.name, value.line);
  if (!is_new) {
    fields.fail(nullptr, "duplicate kind " + in_quotes(kind.name) + ", first on line " +
                             std::to_string(first->second));
  }
  cluster_.kinds.push_back(std::move(kind));
}

int ClusterReader::kind_of(const Fields& fields) const {
  const std::string& wanted = fields.text("kind");
  std::vector<std::string_view> names;
  for (std::size_t k = 0; k < cluster_.kinds.size(); ++k) {
    if (cluster_.kinds[k].name == wanted) return static_cast<int>(k);
    names.emplace_back(cluster_.kinds[k].name);
  }
  fields.fail(fields.find("kind"), "unknown kind " + in_quotes(wanted) + did_you_mean(wanted, names));
}

void ClusterReader::nodes(const Value& value) {
  const Fields fields(value, file_, "[[nodes]]",
                      {"name", "kind", "devices", "count", "cores", "latency", "bandwidth"});
  const int kind = kind_of(fields);
  const std::string name = fields.text_or("name", fmt::format("node{}", cluster_.nodes.size()));
  const auto [first, is_new] = node_lines_.emplace(name, value.line);
  if (!is_new) {
    fields.fail(nullptr,
                "duplicate node " + in_quotes(name) + ", first on line " + std::to_string(first->second));
  }
  const std::int64_t each = fields.integer("devices", 1, kMostDevices);
  const std::int64_t count = fields.find("count") == nullptr ? 1 : fields.integer("count", 1, kMostDevices);
  if (each * count + static_cast<std::int64_t>(cluster_.devices.size()) > kMostDevices)
    fields.fail(nullptr, "more than " + std::to_string(kMostDevices) + " devices in all");
  const std::int64_t cores = fields.find("cores") == nullptr ? 0 : fields.integer("cores", 1, kMostDevices);
  const bool own_link = fields.find("latency") != nullptr || fields.find("bandwidth") != nullptr;
  for (std::int64_t i = 0; i < count; ++i) {
    Node node{.name = count == 1 ? name : fmt::format("{}.{}", name, i),
              .link = {},
              .cores = static_cast<int>(cores)};
    if (own_link) node.link = link_of(fields);
    const int index = static_cast<int>(cluster_.nodes.size());
    cluster_.nodes.push_back(std::move(node));
    for (std::int64_t d = 0; d < each; ++d) cluster_.devices.push_back({kind, index});
  }
}

}  // namespace

Cluster read_cluster(const std::filesystem::path& path) {
  Cluster cluster = parse_cluster(read_file(path, kMaxClusterBytes), path.string());
  for (DeviceKind& kind : cluster.kinds) {
    if (!kind.profile_path.empty()) kind.profile_path = (path.parent_path() / kind.profile_path).string();
  }
  return cluster;
}

Cluster parse_cluster(std::string_view text, const std::string& name) {
  Cluster cluster;
  read_toml(
      text, name, "", [&](const Value& root) { cluster = ClusterReader(name).read(root); },
      [](const Value&) {});
  return cluster;
}

}  // namespace ostinato
