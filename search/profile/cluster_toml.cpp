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

/// `faults`: where unknown keys are noted; null: they throw.
Fields fields_of_file(const Value& root, const std::string& file, Faults* faults = nullptr) {
  return Fields(root, file, "a device file",
                {"format", "name", "time_unit", "memory_unit", "within", "between", "kinds", "nodes"},
                faults);
}

Fields fields_of_kind(const Value& row, const std::string& file, Faults* faults = nullptr) {
  return Fields(row, file, "[[kinds]]", {"name", "memory", "speed", "profile"}, faults);
}

/// `why`: none is too few.
const std::vector<Value>& rows_of(const Fields& fields, std::string_view key, std::string_view why) {
  const Value* rows = fields.find(key);
  if (rows == nullptr || (rows->kind == ValueKind::array && rows->items.empty()))
    fields.fail(nullptr, fmt::format("a device file needs [[{}]]: {}", key, why));
  return fields.need(key, ValueKind::array).items;
}

class ClusterReader {
 public:
  /// `folder`: where the profiles' paths start; null: they stay as they are.
  ClusterReader(const std::string& file, const std::filesystem::path* folder)
      : file_(file), folder_(folder) {}

  Cluster read(const Value& root);

 private:
  std::optional<Link> link(const Fields& root, std::string_view key);
  Link link_of(const Fields& fields) const;
  void set_memory_unit(const Fields& fields);
  Bytes memory(const Fields& fields) const;
  std::string profile(const Fields& fields) const;
  void kind(const Value& value);
  void nodes(const Value& value);
  int kind_of(const Fields& fields) const;

  const std::string& file_;
  const std::filesystem::path* folder_;
  Cluster cluster_;
  std::int64_t time_factor_ = 1;
  std::optional<std::int64_t> memory_factor_;  // without one each amount has its unit: "40GiB"
  std::unordered_map<std::string, int> kind_lines_, node_lines_;
  Faults faults_;
};

Cluster ClusterReader::read(const Value& root) {
  check_format(root, file_, kFormat);
  const Fields fields = fields_of_file(root, file_, &faults_);
  cluster_.name = fields.text_or("name", "");
  faults_.in([&] { time_factor_ = unit_field(fields, "time_unit", kTimeUnits, "us"); });
  faults_.in([&] { set_memory_unit(fields); });
  faults_.in([&] { cluster_.within = link(fields, "within"); });
  faults_.in([&] { cluster_.between = link(fields, "between"); });
  faults_.in([&] {
    for (const Value& row : rows_of(fields, "kinds", "there must be at least one kind of device"))
      faults_.in([&] { kind(row); });
  });
  faults_.in([&] {
    for (const Value& row : rows_of(fields, "nodes", "there must be at least one device"))
      faults_.in([&] { nodes(row); });
  });
  faults_.raise();
  return std::move(cluster_);
}

/// A unit that is not known counts as one: then no amount lacks it, too.
void ClusterReader::set_memory_unit(const Fields& fields) {
  if (fields.find("memory_unit") == nullptr) return;
  memory_factor_ = 1;
  memory_factor_ = unit_field(fields, "memory_unit", kMemoryUnits, "B");
}

std::optional<Link> ClusterReader::link(const Fields& root, std::string_view key) {
  const Value* value = root.find(key);
  if (value == nullptr) return std::nullopt;
  return link_of(Fields(*value, file_, in_quotes(key), {"latency", "bandwidth"}, &faults_));
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

std::string ClusterReader::profile(const Fields& fields) const {
  const std::string written = fields.text_or("profile", "");
  if (written.empty() || folder_ == nullptr) return written;
  const std::filesystem::path path = *folder_ / written;
  if (!std::filesystem::exists(path))
    fields.fail(fields.find("profile"), fmt::format("'profile': there is no {}", path.string()));
  return path.string();
}

void ClusterReader::kind(const Value& value) {
  const Fields fields = fields_of_kind(value, file_, &faults_);
  DeviceKind& kind = cluster_.kinds.emplace_back();  // nodes may name it, even where a field is wrong
  kind.name = fields.text("name");
  kind.speed = fields.scaled("speed", kUsualSpeed, 0, kUsualSpeed);
  faults_.in([&] { kind.profile_path = profile(fields); });
  faults_.in([&] { kind.memory = memory(fields); });
  if (kind.speed == 0) fields.fail(fields.find("speed"), "'speed' must be above 0: 0.5 takes twice as long");
  const auto [first, is_new] = kind_lines_.emplace(kind.name, value.line);
  if (!is_new && fields.sound()) {
    fields.fail(nullptr, "duplicate kind " + in_quotes(kind.name) + ", first on line " +
                             std::to_string(first->second));
  }
}

int ClusterReader::kind_of(const Fields& fields) const {
  const std::string& wanted = fields.need("kind", ValueKind::text).text;
  std::vector<std::string_view> names;
  for (std::size_t k = 0; k < cluster_.kinds.size(); ++k) {
    if (cluster_.kinds[k].name == wanted) return static_cast<int>(k);
    names.emplace_back(cluster_.kinds[k].name);
  }
  fields.fail(fields.find("kind"), "unknown kind " + in_quotes(wanted) + did_you_mean(wanted, names));
}

void ClusterReader::nodes(const Value& value) {
  const Fields fields(value, file_, "[[nodes]]",
                      {"name", "kind", "devices", "count", "cores", "latency", "bandwidth"}, &faults_);
  const std::string name = fields.text_or("name", fmt::format("node{}", cluster_.nodes.size()));
  const std::int64_t each = fields.integer("devices", 1, kMostDevices);
  const std::int64_t count = fields.find("count") == nullptr ? 1 : fields.integer("count", 1, kMostDevices);
  const std::int64_t cores = fields.find("cores") == nullptr ? 0 : fields.integer("cores", 1, kMostDevices);
  const bool own_link = fields.find("latency") != nullptr || fields.find("bandwidth") != nullptr;
  const Link link = own_link ? link_of(fields) : Link{};
  const int kind = kind_of(fields);
  const auto [first, is_new] = node_lines_.emplace(name, value.line);
  if (!is_new) {
    fields.fail(nullptr,
                "duplicate node " + in_quotes(name) + ", first on line " + std::to_string(first->second));
  }
  if (each * count + static_cast<std::int64_t>(cluster_.devices.size()) > kMostDevices)
    fields.fail(nullptr, "more than " + std::to_string(kMostDevices) + " devices in all");
  for (std::int64_t i = 0; i < count; ++i) {
    Node node{.name = count == 1 ? name : fmt::format("{}.{}", name, i),
              .link = {},
              .cores = static_cast<int>(cores)};
    if (own_link) node.link = link;
    const int index = static_cast<int>(cluster_.nodes.size());
    cluster_.nodes.push_back(std::move(node));
    for (std::int64_t d = 0; d < each; ++d) cluster_.devices.push_back({kind, index});
  }
}

/// "40GiB", or "40 GiB" where the unit stands at the top of the file.
std::string as_written(const Value& memory, const std::string& unit) {
  if (memory.kind == ValueKind::text) return memory.text;
  return (memory.kind == ValueKind::integer ? std::to_string(memory.integer) : memory.text) + " " + unit;
}

}  // namespace

std::vector<std::string> memory_as_written(std::string_view text, const std::string& name) {
  std::vector<std::string> lines;
  const auto read = [&](const Value& root) {
    const Fields file = fields_of_file(root, name);
    for (const Value& row : file.need("kinds", ValueKind::array).items) {
      const Fields kind = fields_of_kind(row, name);
      if (const Value* memory = kind.find("memory"))
        lines.push_back(fmt::format("{}:{}: {} of memory on {}", name, memory->line,
                                    as_written(*memory, file.text_or("memory_unit", "")),
                                    in_quotes(kind.text("name"))));
    }
  };
  read_toml(text, name, "", read, [](const Value&) {});
  return lines;
}

Cluster read_cluster(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  return parse_cluster(read_file(path, kMaxClusterBytes), path.string(), &folder);
}

Cluster parse_cluster(std::string_view text, const std::string& name, const std::filesystem::path* folder) {
  Cluster cluster;
  read_toml(
      text, name, "", [&](const Value& root) { cluster = ClusterReader(name, folder).read(root); },
      [](const Value&) {});
  return cluster;
}

}  // namespace ostinato
