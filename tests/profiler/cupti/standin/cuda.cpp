// SPDX-License-Identifier: Apache-2.0
// Has the name of NVIDIA's driver library (libcuda.so.1) and none of its functions: the collector only asks
// whether a driver is installed, and never calls it.

extern "C" int cuda_stand_in() { return 0; }
