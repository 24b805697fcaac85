// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/traffic.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cassert>

#include "plugin/executor/error.h"
#include "plugin/lowering/flow.h"
#include "search/plan/sends_ahead.h"

namespace ostinato {
namespace {

/// Before a message, where shapes may change.
constexpr std::int64_t kUnchanged = 0;
constexpr std::int64_t kAnnounced = 1;

constexpr int kMessagesOfSend = 3;  ///< at most: which of the two, shapes or orders, tensors

bool trains(const Program& program) {
  return std::any_of(program.stages.begin(), program.stages.end(),
                     [](const ProgramStage& stage) { return stage.has_backward; });
}

int sends_ahead_of(const Program& program, bool dynamic) {
  return trains(program) ? 0 : sends_ahead(program, kSendsAhead, dynamic);
}

/// A device without an index is the current one of its type.
bool differ(const at::Device& one, const at::Device& other) {
  return one.type() != other.type() || (one.has_index() && other.has_index() && one.index() != other.index());
}

std::string seconds(std::chrono::nanoseconds time) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

constexpr const char* kShapesHint =
    "if the last batch of an epoch is smaller, give its loader drop_last=True; if shapes change, set "
    "PipelineModule(dynamic_shape=True) or Pipeline(dynamic_shapes=True)";
constexpr const char* kFrozenHint =
    "if parameters were unfrozen since, call Pipeline.reset_shapes() or DeepSpeed's reset_activation_shape() "
    "on all ranks; if layers are skipped at random, set PipelineModule(dynamic_shape=True) or "
    "Pipeline(dynamic_shapes=True)";

/// Apart from whether a gradient comes back.
bool alike(MessageSpec one, const MessageSpec& other) {
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i)
    one[i].requires_grad = other[i].requires_grad;
  return one == other;
}

}  // namespace

Traffic::Traffic(const Program& program, int rank, Channel& channel, std::chrono::nanoseconds timeout,
                 Meter& meter, std::function<void(int)> waiting, bool dynamic)
    : program_(program),
      rank_(rank),
      channel_(channel),
      timeout_(timeout),
      meter_(meter),
      waiting_(std::move(waiting)),
      dynamic_(dynamic),
      late_(dynamic && trains(program) && channel.posting() == Posting::anywhere),
      ahead_(sends_ahead_of(program, dynamic)),
      itinerary_(ostinato::itinerary(program, rank, channel.posting())),
      pool_(channel.device(), meter),
      inbound_(program.ranks[rank].size()) {
  for (const Instruction& i : program.ranks[rank]) {
    if (is_compute(i.action) || streams_.contains(i.peer)) continue;
    streams_.emplace(i.peer, Streams{SideStream(channel.device()), SideStream(channel.device())});
  }
}

void Traffic::renew() {
  assert(next_post_ == 0);
  ahead_ = sends_ahead_of(program_, dynamic_);
  itinerary_ = ostinato::itinerary(program_, rank_, channel_.posting());
  inbound_.clear();
  inbound_.resize(program_.ranks[rank_].size());
}

std::map<int, int> Traffic::messages(bool any_order) const {
  std::map<int, int> messages = itinerary_.most_sends;
  if (any_order) {
    for (auto& [peer, count] : messages) count = 0;
    for (const Instruction& i : program_.ranks[rank_])
      if (is_send(i.action)) ++messages[i.peer];
  }
  for (auto& [peer, count] : messages)
    count = kMessagesOfSend * (ahead_ > 0 && !any_order ? std::min(count, ahead_) : count);
  return messages;
}

void Traffic::Edge::learn(MessageSpec spec) {
  backward = gradient_of(spec);
  forward = std::move(spec);
}

Traffic::Edge& Traffic::edge(const Instruction& i) {
  const bool own_first = i.action == Action::send_forward || i.action == Action::receive_backward;
  return edges_[own_first ? std::pair(i.stage, i.peer_stage) : std::pair(i.peer_stage, i.stage)];
}

void Traffic::learn(int from, int to, int micro_batch, const std::vector<at::Tensor>& tensors) {
  const Lock lock(mutex_);
  Edge& e = edges_[{from, to}];
  if (!e.forward) e.learn(describe(tensors));
  if (dynamic_) e.of_micro_batch[micro_batch] = gradient_of(describe(tensors));
}

const MessageSpec& Traffic::spec_of(const Instruction& i, const Edge& edge) const {
  if (i.action == Action::send_forward || i.action == Action::receive_forward) return *edge.forward;
  return dynamic_ ? edge.of_micro_batch.at(i.micro_batch) : edge.backward;
}

const Order& Traffic::order_of(const Instruction& i, const Edge& edge, std::size_t tensor) {
  if (i.action == Action::send_forward || i.action == Action::receive_forward)
    return (*edge.forward)[tensor].order;
  static const Order none;
  const auto& orders = i.action == Action::send_backward ? edge.orders_to : edge.orders_by;
  const std::vector<Order>& known = orders.at(i.peer);
  // A message may have more tensors than the one that told the orders, where shapes may change.
  return tensor < known.size() ? known[tensor] : none;
}

std::string Traffic::partner(int index) const {
  const Instruction& i = at(index);
  const auto& list = program_.ranks[i.peer];
  for (std::size_t k = 0; k < list.size(); ++k) {
    if (list[k].peer == rank_ && list[k].action == opposite(i.action) && list[k].stage == i.peer_stage &&
        list[k].peer_stage == i.stage && list[k].micro_batch == i.micro_batch) {
      return to_string(list[k]) + " of rank " + std::to_string(i.peer) + " (its instruction " +
             std::to_string(k) + ")";
    }
  }
  return "nothing";
}

std::string Traffic::name(int index) const {
  const Instruction& i = at(index);
  const std::string peer =
      is_compute(i.action) ? "" : (is_send(i.action) ? " to rank " : " from rank ") + std::to_string(i.peer);
  return to_string(i) + peer + ", instruction " + std::to_string(index);
}

std::string Traffic::late(int index) const {
  const std::string text =
      "rank " + std::to_string(rank_) + " waited " + seconds(timeout_) + " for " + name(index);
  return is_compute(at(index).action) ? text : text + ", which waits for " + partner(index);
}

void Traffic::complete(Transfers& transfers, int index) {
  if (transfers.empty()) return;
  waiting_(index);
  await(transfers, index);
  waiting_(-1);
}

void Traffic::await(Transfers& transfers, int index) {
  for (auto& transfer : transfers) {
    try {
      if (!wait_for(*transfer)) throw TimeoutError(late(index));
    } catch (const TimeoutError&) {
      throw;
    } catch (const ExecutionError& error) {
      throw ExecutionError("rank " + std::to_string(rank_) + ": " + name(index) + " failed: " + error.what());
    }
  }
  transfers.clear();
}

bool Traffic::wait_for(Transfer& transfer) {
  const auto note = [&](bool waits) {
    const std::lock_guard lock(abandoning_);
    waits ? void(waited_.insert(&transfer)) : void(waited_.erase(&transfer));
    return abandoned_;
  };
  const bool can_end = note(true).empty();
  const auto over = c10::make_scope_exit([&] { note(false); });
  if (transfer.wait(can_end ? timeout_ : std::chrono::nanoseconds{0})) return true;
  const std::string why = note(false);
  if (!why.empty()) throw ExecutionError(why);
  return false;
}

void Traffic::abandon(const std::string& why) {
  const std::lock_guard lock(abandoning_);
  if (abandoned_.empty()) abandoned_ = why;
  for (Transfer* transfer : waited_) transfer->give_up();
}

bool Traffic::is_known(int index) {
  const Instruction& i = at(index);
  const Edge& e = edge(i);
  if (i.action == Action::receive_backward && !e.orders_by.contains(i.peer)) return false;
  if (!e.forward || !dynamic_) return e.forward.has_value();
  return i.action == Action::receive_forward ? flagged_ == index : e.of_micro_batch.contains(i.micro_batch);
}

void Traffic::post_before(int index) {
  const Lock lock(mutex_);
  post_until(index);
}

void Traffic::post_until(int index) {
  for (; next_post_ < index; ++next_post_) {
    const Instruction& i = at(next_post_);
    if (!is_receive(i.action)) continue;
    const Edge& e = edge(i);
    if (!is_known(next_post_)) return;  // post() takes it at its place
    Inbound& inbound = inbound_[next_post_].emplace();
    SideStream& stream = streams_.at(i.peer).in;
    std::vector<at::Tensor> tensors;
    const MessageSpec& message = spec_of(i, e);
    for (std::size_t t = 0; t < message.size(); ++t) {
      Buffer buffer = message[t].present ? pool_.take(message[t], order_of(i, e, t)) : Buffer();
      if (message[t].bytes() > 0) {
        tensors.push_back(buffer.tensor());
        stream.after(buffer.is_free());
      }
      inbound.buffers.push_back(std::move(buffer));
    }
    const auto here = stream.enter();
    if (!tensors.empty()) inbound.transfers.push_back(channel_.receive(std::move(tensors), i.peer));
  }
}

void Traffic::post(int index) {
  const Lock lock(mutex_);
  if (!late_) post_here(index);
}

void Traffic::post_here(int index) {
  if (is_posted_here(index)) return;
  assert(next_post_ == index);
  if (at(index).action == Action::receive_backward)
    read_orders(index);
  else if (dynamic_)
    read_flag(index);
  else
    read_announcement(index);
  post_until(index + 1);
}

at::Tensor Traffic::receive_words(std::int64_t count, int index) {
  SideStream& stream = streams_.at(at(index).peer).in;
  const auto here = stream.enter();  // so that the host does not wait for what computes by now
  const at::Tensor words = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(channel_.device()));
  Transfers transfers;
  transfers.push_back(channel_.receive({words}, at(index).peer));
  complete(transfers, index);
  waiting_(index);
  if (!stream.wait(timeout_)) throw TimeoutError(late(index));
  waiting_(-1);
  return words.cpu();
}

void Traffic::read_flag(int index) {
  const Instruction& i = at(index);
  const at::Tensor flag = receive_words(1, index);
  Edge& e = edge(i);
  if (flag.item<std::int64_t>() == kAnnounced) {
    read_announcement(index);
    e.announced_by[i.peer] = *e.forward;
    note_change();
  } else {
    e.learn(e.announced_by.at(i.peer));
  }
  e.of_micro_batch[i.micro_batch] = e.backward;
  flagged_ = index;
}

void Traffic::note_change() {
  changed_ = true;
  pool_.shapes_change(true);
}

void Traffic::read_announcement(int index) {
  edge(at(index)).learn(decode(receive_words(kHeaderLength, index)));
}

void Traffic::read_orders(int index) {
  auto& orders = edge(at(index)).orders_by[at(index).peer];
  for (TensorSpec& gradient : decode(receive_words(kHeaderLength, index)))
    orders.push_back(std::move(gradient.order));
}

std::vector<Buffer> Traffic::wait(int index) {
  Inbound inbound = expect(index);
  complete(inbound.transfers, index);
  arrived(index);
  return std::move(inbound.buffers);
}

bool Traffic::is_posted(int index) {
  const Lock lock(mutex_);
  return is_posted_here(index);
}

bool Traffic::is_posted_here(int index) {
  post_until(index + 1);
  return next_post_ > index;
}

Traffic::Inbound Traffic::expect(int index) {
  const Lock lock(mutex_);
  while (!is_posted_here(index)) post_here(next_post_);
  assert(inbound_[index]);
  Inbound inbound = std::move(*inbound_[index]);
  inbound_[index].reset();
  return inbound;
}

void Traffic::await(Inbound& message, int index) { await(message.transfers, index); }

void Traffic::arrived(int index) {
  const Lock lock(mutex_);
  release_sends(at(index).peer, itinerary_.sends_over[index]);
}

void Traffic::check(const Instruction& i, const MessageSpec& spec,
                    const std::vector<at::Tensor>& tensors) const {
  if (matches(spec, tensors)) return;
  const MessageSpec carried = describe(tensors);
  throw ExecutionError("rank " + std::to_string(rank_) + ": " + to_string(i) + " carries " +
                       to_string(carried) + ", but stage '" + program_.stages[i.stage].name + "' announced " +
                       to_string(spec) + "; " + (alike(spec, carried) ? kFrozenHint : kShapesHint));
}

void Traffic::announce(const Instruction& i, Edge& edge, const std::vector<at::Tensor>& tensors,
                       Outbound& out) {
  if (dynamic_ || !edge.forward) edge.learn(describe(tensors));
  const auto before = edge.announced_to.find(i.peer);
  const bool known = before != edge.announced_to.end() && (!dynamic_ || before->second == *edge.forward);
  if (dynamic_) {
    send_words(at::full({1}, known ? kUnchanged : kAnnounced, at::TensorOptions().dtype(at::kLong)), i.peer,
               out);
    edge.of_micro_batch[i.micro_batch] = edge.backward;
  }
  if (known) return;
  if (before != edge.announced_to.end()) note_change();
  edge.announced_to[i.peer] = *edge.forward;
  send_words(encode(*edge.forward), i.peer, out);
}

void Traffic::announce_orders(const Instruction& i, Edge& edge, const std::vector<at::Tensor>& tensors,
                              Outbound& out) {
  const auto [orders, first] = edge.orders_to.try_emplace(i.peer);
  if (!first) return;
  const MessageSpec gradients = describe(tensors);
  for (const TensorSpec& gradient : gradients) orders->second.push_back(gradient.order);
  send_words(encode(gradients), i.peer, out);
}

void Traffic::send_words(const at::Tensor& words, int peer, Outbound& out) {
  const SideStream& stream = streams_.at(peer).out;
  at::Tensor there;
  {
    const auto here = stream.enter();  // ahead of what the message itself waits for
    there = words.to(channel_.device(), /*non_blocking=*/true);
    out.transfers.push_back(channel_.send({there}, peer));
  }
  stream.let_go_by_current(there);
}

Traffic::Payload Traffic::payload(const Instruction& i, const Edge& edge,
                                  const std::vector<at::Tensor>& tensors) const {
  const MessageSpec& spec = spec_of(i, edge);
  Payload payload;
  for (std::size_t t = 0; t < spec.size(); ++t) {
    if (spec[t].bytes() == 0) continue;
    if (tensors[t].defined() && differ(tensors[t].device(), channel_.device()))
      throw ExecutionError("stage '" + program_.stages[i.stage].name + "' hands on a tensor on " +
                           tensors[t].device().str() + ", but its rank computes on " +
                           channel_.device().str() + ": move it there (.to(device))");
    // A stage that does not use an input has no gradient for it; its peer waits for one all the same.
    payload.tensors.push_back(
        tensors[t].defined()
            ? laid_out(tensors[t], order_of(i, edge, t))
            : at::zeros(spec[t].sizes, at::TensorOptions().dtype(spec[t].dtype).device(channel_.device())));
    payload.as_made =
        payload.as_made && tensors[t].defined() && payload.tensors.back().is_alias_of(tensors[t]);
    payload.bytes += spec[t].bytes();
  }
  return payload;
}

void Traffic::send(int index, const std::vector<at::Tensor>& tensors, const c10::Event* made) {
  const Lock lock(mutex_);
  send_here(index, tensors, made);
}

bool Traffic::send_early(int index, const std::vector<at::Tensor>& tensors) {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock || dynamic_ || ahead_ > 0) return false;
  const int peer = at(index).peer;
  const int sent = static_cast<int>(outbound_[peer].size());
  if (sent != itinerary_.sends_before[index]) return false;
  if (sent - released_[peer] >= itinerary_.most_sends.at(peer)) return false;
  send_here(index, tensors, nullptr);
  return true;
}

void Traffic::send_here(int index, const std::vector<at::Tensor>& tensors, const c10::Event* made) {
  const Instruction& i = at(index);
  Edge& e = edge(i);
  Outbound out{.index = index, .bytes = 0, .transfers = {}};
  if (ahead_ > 0) release_sends(i.peer, static_cast<int>(outbound_[i.peer].size()) + 1 - ahead_);
  if (i.action == Action::send_forward) {
    announce(i, e, tensors, out);
    check(i, *e.forward, tensors);
  } else {
    announce_orders(i, e, tensors, out);
  }
  Payload message = payload(i, e, tensors);
  if (i.action == Action::send_forward) out.handed = HandedOn(message.tensors);
  if (!message.tensors.empty()) {
    SideStream& stream = streams_.at(i.peer).out;
    message.as_made ? stream.after(made) : stream.after_current();
    const auto here = stream.enter();
    out.transfers.push_back(channel_.send(std::move(message.tensors), i.peer));
  }
  out.bytes = message.bytes;
  meter_.add(out.bytes);
  outbound_[i.peer].push_back(std::move(out));
}

void Traffic::release_sends(int peer, int count) {
  auto& sends = outbound_[peer];
  for (int& released = released_[peer]; released < count; ++released) {
    Outbound& send = sends[released];
    complete(send.transfers, send.index);
    send.handed.expect_unchanged(program_.stages[at(send.index).stage]);
    meter_.add(-send.bytes);
  }
}

void Traffic::finish() {
  const Lock lock(mutex_);
  for (auto& [peer, sends] : outbound_) {
    release_sends(peer, static_cast<int>(sends.size()));
    sends.clear();
    released_[peer] = 0;
  }
  next_post_ = 0;
  flagged_ = -1;
  for (auto& [ends, edge] : edges_) edge.of_micro_batch.clear();
  pool_.shapes_change(false);
  if (std::exchange(changed_, false)) pool_.clear();  // buffers of shapes that may not come again
}

}  // namespace ostinato
