// SPDX-License-Identifier: Apache-2.0
#pragma once
// Is a program free of deadlock where nothing is buffered? An exact check that shares nothing with lowering.
//
//   DeadlockProof proof = prove_deadlock_free(program);
//   if (!proof.ok()) die(proof.failure);    // "rank 1 waits at instruction 4, 1RECV_F2 from rank 0, ..."
//
// Model: every rank runs its list in order; a compute runs when its inputs are there; a send and its receive
// happen together, and each blocks its rank until the other arrives (rendezvous). So does a compute of a
// sharded stage: its ranks run it together, each blocked until all have arrived, which is how the collectives
// inside it meet in one order. Such a system is confluent:
// which ready instruction goes first changes neither what runs in the end nor whether all of it does, so one
// execution decides (it is a marked graph: Commoner, Holt, Even, Pnueli 1971). What passes here also passes
// with any amount of buffering, with receives posted earlier, and with sends that are waited for later.

#include <string>

#include "plugin/lowering/program.h"

namespace ostinato {

struct DeadlockProof {
  std::string failure;  ///< in words: rank, instruction, peer; empty: the program runs to its end
  bool ok() const { return failure.empty(); }
};

/// Also refuses a program in which a stage runs on a wrong rank, a step is missing on one of its ranks or
/// stands twice, an input is used before it is there or arrives where it is already, a backward runs before
/// its forward, or the k-th send of a directed pair of ranks is not the partner of its k-th receive.
/// O(instructions).
DeadlockProof prove_deadlock_free(const Program& program);

}  // namespace ostinato
