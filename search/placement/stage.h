// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stage: layers of the model that run together, and where. The partitioners cut a model into stages, the
// file of a placement names them, and a lowered program runs them.
//
//   Stage stage{.name = "s0", .layers = Layers::run(0, 4), .devices = {0}};
//   for (const int layer : stage.layers) ...                       // 0, 1, 2, 3
//   const Layers rest = stage.layers.split(3);                     // {3}; the stage keeps 0, 1, 2

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

namespace ostinato {

/// Layers [first, end) of the model.
struct LayerRun {
  int first = 0;
  int end = 0;

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

/// Indices of layers, rising, each once. Kept as runs: most stages are one, a stage over a graph with
/// branches may have several.
class Layers {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using iterator_concept = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = int;

    Iterator() = default;
    explicit Iterator(const LayerRun* run) : run_(run) {}
    int operator*() const { return run_->first + passed_; }
    Iterator& operator++() {
      if (run_->first + ++passed_ == run_->end) *this = Iterator(run_ + 1);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const LayerRun* run_ = nullptr;
    int passed_ = 0;  ///< layers of the run
  };

  Layers() = default;
  Layers(std::initializer_list<int> rising) : Layers(std::vector<int>(rising)) {}
  /// Rising, each once.
  Layers(const std::vector<int>& rising);  // NOLINT(google-explicit-constructor): the same thing, unpacked
  static Layers run(int first, int end);   ///< first <= end

  const std::vector<LayerRun>& runs() const { return runs_; }  ///< rising; a layer is left out between two
  Iterator begin() const { return Iterator(runs_.data()); }
  Iterator end() const { return Iterator(runs_.data() + runs_.size()); }
  bool empty() const { return runs_.empty(); }
  std::size_t size() const;  ///< layers. O(runs)
  int front() const { return runs_.front().first; }
  int back() const { return runs_.back().end - 1; }
  int operator[](std::size_t position) const;  ///< O(runs)
  bool contains(int layer) const;              ///< O(log runs)

  void push_back(int layer);  ///< after the last one
  void add(const Layers& more);
  /// Keeps the layers before this position, and returns the rest.
  Layers split(std::size_t position);

  friend bool operator==(const Layers&, const Layers&) = default;

 private:
  std::vector<LayerRun> runs_;
};

struct Stage {
  std::string name = {};          ///< as in Block::stage; empty while a partitioner is still cutting
  Layers layers = {};             ///< empty if not specified
  std::vector<int> devices = {};  ///< several: each holds a part of every layer
  bool recompute = false;         ///< its forward keeps the stage's input only; the backward runs it again

  bool sharded() const { return devices.size() > 1; }

  friend bool operator==(const Stage&, const Stage&) = default;
};

/// What runs a stage, as indices into Placement::blocks; -1: it has none of that kind.
struct StageBlocks {
  int forward = -1;
  int backward = -1;  ///< whole, or the input half
  int weight = -1;    ///< the weight half of a split backward
};

}  // namespace ostinato
