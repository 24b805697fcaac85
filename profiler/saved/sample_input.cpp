// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/sample_input.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <charconv>
#include <map>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace ostinato {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;  // elements: rather a message than the whole memory

const std::map<std::string, at::ScalarType>& types() {
  static const std::map<std::string, at::ScalarType> known = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},    {"int32", at::kInt},      {"bool", at::kBool}};
  return known;
}

[[noreturn]] void fail(const std::string& words, const std::string& why) {
  throw std::invalid_argument("input '" + words + "': " + why + "; write SHAPE:TYPE, 8x128:int64:50257 say");
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

std::int64_t number(const std::string& words, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMost) {
    fail(words, "'" + text + "' is no number from 1 to 2^40");
  }
  return value;
}

std::vector<std::int64_t> shape_of(const std::string& words, const std::string& text) {
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 1;
  if (text == "scalar") return sizes;
  for (const std::string& part : split(text, 'x')) {
    sizes.push_back(number(words, part));
    if (sizes.back() > kMost / elements) fail(words, "has more than 2^40 elements");
    elements *= sizes.back();
  }
  if (sizes.empty()) fail(words, "has no shape");
  return sizes;
}

}  // namespace

at::Tensor sample_input(const std::string& words) {
  const std::vector<std::string> parts = split(words, ':');
  if (parts.empty() || parts.size() > 3) fail(words, "has no shape, or more than three parts");
  const std::vector<std::int64_t> sizes = shape_of(words, parts[0]);
  const auto type = types().find(parts.size() > 1 ? parts[1] : "float32");
  if (type == types().end()) fail(words, "'" + parts[1] + "' is no type that can be made up");
  at::Generator seeded = at::detail::createCPUGenerator(0);
  if (at::isFloatingType(type->second)) {
    if (parts.size() > 2) fail(words, "floating point numbers have no bound");
    return at::randn(sizes, seeded, at::TensorOptions(at::kFloat)).to(type->second);
  }
  const std::int64_t below = parts.size() > 2 ? number(words, parts[2]) : 1;
  return at::randint(0, below, sizes, seeded, at::TensorOptions(at::kLong)).to(type->second);
}

}  // namespace ostinato
