// SPDX-License-Identifier: Apache-2.0
#include "search/plan/sizes_toml.h"

#include <fmt/format.h>

#include "search/files/file.h"
#include "search/files/toml_values.h"
#include "search/files/unit_field.h"
#include "search/files/units.h"

namespace ostinato {
namespace {

constexpr std::string_view kFormat = "ostinato-sizes/1";

/// What stands above the first micro-batch.
struct Head {
  std::int64_t of = 0;  ///< size of the micro-batch that is known; 0: not said
  std::int64_t time_factor = 1, memory_factor = 1;
};

Head head_of(const Value& root, const std::string& file) {
  check_format(root, file, kFormat);
  const Fields fields(root, file, "a file of sizes",
                      {"format", "size", "time_unit", "memory_unit", "micro_batches"});
  Head head;
  if (fields.find("size") != nullptr) head.of = fields.integer("size", 1);
  head.time_factor = unit_field(fields, "time_unit", kTimeUnits, "us");
  head.memory_factor = unit_field(fields, "memory_unit", kMemoryUnits, "MiB");
  return head;
}

class SizesReader {
 public:
  SizesReader(const std::string& file, const Placement& placement) : file_(file), placement_(placement) {}

  void root(const Value& root) { head_ = head_of(root, file_); }

  void micro_batch(const Value& value) {
    const Fields fields(value, file_, "[[micro_batches]]", {"size", "times", "memory", "workspace"});
    if (fields.find("size") == nullptr && fields.find("times") == nullptr)
      fields.fail(nullptr, "a micro-batch needs a 'size' or 'times'");
    MicroBatch one = as_written(placement_);
    if (fields.find("size") != nullptr) {
      if (head_.of == 0)
        fields.fail(
            fields.find("size"),
            "'size' needs the size for which the placement was made: put size = ... at the top of the file");
      one = scaled(placement_, fields.integer("size", 0), head_.of);
    }
    figures(fields, "times", head_.time_factor, 0, one.times);
    figures(fields, "memory", head_.memory_factor, -Fields::kLargest, one.memory);
    figures(fields, "workspace", head_.memory_factor, 0, one.workspace);
    sizes_.push_back(std::move(one));
    lines_.push_back(value.line);
  }

  std::vector<MicroBatch> finish() {
    try {
      check_sizes(placement_, sizes_);
    } catch (const InputError& error) {
      throw InputError(file_, lines_.empty() ? 0 : lines_.front(), error.what());
    }
    return std::move(sizes_);
  }

 private:
  /// "s0.F" = 12.5, ...: of the blocks that are named.
  void figures(const Fields& fields, std::string_view key, std::int64_t factor, std::int64_t low,
               std::vector<std::int64_t>& into) const {
    if (fields.find(key) == nullptr) return;
    const Value& table = fields.need(key, ValueKind::object);
    for (std::size_t k = 0; k < table.keys.size(); ++k) {
      const int block = placement_.find_block(table.keys[k]);
      if (block < 0) {
        std::vector<std::string_view> names;
        for (const Block& one : placement_.blocks) names.push_back(one.name);
        fields.fail(&table.items[k],
                    "unknown block " + in_quotes(table.keys[k]) + did_you_mean(table.keys[k], names));
      }
      Value one;  // the getters of Fields have the wording of every refusal
      one.kind = ValueKind::object;
      one.line = table.items[k].line;
      one.keys = {std::string(key)};
      one.items = {table.items[k]};
      into[block] = Fields(one, file_, in_quotes(table.keys[k]), {key}).scaled(key, factor, low);
    }
  }

  const std::string& file_;
  const Placement& placement_;
  Head head_;
  std::vector<MicroBatch> sizes_;
  std::vector<int> lines_;
};

}  // namespace

std::vector<MicroBatch> read_sizes(const std::filesystem::path& path, const Placement& placement) {
  return parse_sizes(read_file(path, kMaxSizesBytes), path.string(), placement);
}

std::vector<MicroBatch> parse_sizes(std::string_view text, const std::string& name,
                                    const Placement& placement) {
  SizesReader reader(name, placement);
  read_toml(
      text, name, "micro_batches", [&](const Value& root) { reader.root(root); },
      [&](const Value& one) { reader.micro_batch(one); });
  return reader.finish();
}

BareSizes read_bare_sizes(const std::filesystem::path& path) {
  return parse_bare_sizes(read_file(path, kMaxSizesBytes), path.string());
}

BareSizes parse_bare_sizes(std::string_view text, const std::string& name) {
  BareSizes bare;
  const auto root = [&](const Value& value) { bare.of = head_of(value, name).of; };
  const auto one = [&](const Value& value) {
    const Fields fields(value, name, "[[micro_batches]]", {"size", "times", "memory", "workspace"});
    for (const char* key : {"times", "memory", "workspace"})
      if (fields.find(key) != nullptr)
        fields.fail(fields.find(key),
                    fmt::format("'{}' names blocks, but there is no placement yet: give only a 'size'", key));
    bare.sizes.push_back(fields.integer("size", 0));
  };
  read_toml(text, name, "micro_batches", root, one);
  if (bare.sizes.empty()) throw InputError(name, 0, "no micro-batch; a step needs at least one");
  return bare;
}

}  // namespace ostinato
