// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a profile's times say anything: a machine that is busy with other work spreads them.
//
//   const std::string warning = noise_warning(profile);
//   if (!warning.empty()) std::cerr << "warning: " << warning << '\n';

#include <string>

#include "search/profile/profile.h"

namespace ostinato {

/// The share of a micro-batch's time that is not known: half of what lies between the quartiles of forwards
/// and whole backwards, which half of all samples are off the median by at most. 0: all times are exact.
/// O(layers).
double unknown_share(const Profile& profile);

/// Which layers' times are not known, in words; "": all are. A time is not known if its quartiles lie more
/// than half its median apart, and over all layers that it stands for (`same_as`) more than a hundredth of a
/// micro-batch. Nor are the halves of a backward known if together they take less than nineteen twentieths of
/// the whole, and all such gaps make a hundredth of a micro-batch: layers_on() (cluster.h) then takes the
/// whole for both. O(layers).
std::string noise_of(const Profile& profile);

/// How far the times can be trusted, in words, where that is not well; "": where half of the samples are
/// within a twentieth. O(layers).
std::string trust_of(const Profile& profile);

/// noise_of(), and what to do about it; "": nothing. What every command says, in C++ and in Python.
std::string noise_warning(const Profile& profile);

}  // namespace ostinato
