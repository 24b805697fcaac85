// SPDX-License-Identifier: Apache-2.0
// abi.h and launches.h against NVIDIA's headers. Compiled only where the build finds <cupti.h>; holds no
// code.

#include <cupti.h>

#include "profiler/cupti/abi.h"
#include "profiler/cupti/launches.h"

namespace ostinato::cupti {
namespace {

#define SAME_FIELD(ours, our_field, theirs, their_field)                           \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(abi::ours::our_field) == sizeof(theirs::their_field),   \
                #ours "." #our_field " is not where " #theirs "." #their_field " is")

#define CHECK_KERNEL(T)                        \
  SAME_FIELD(KernelHead, start, T, start);     \
  SAME_FIELD(KernelHead, end, T, end);         \
  SAME_FIELD(KernelHead, device, T, deviceId); \
  SAME_FIELD(KernelHead, stream, T, streamId); \
  SAME_FIELD(KernelHead, correlation, T, correlationId)

#define CHECK_COPY(Head, T)              \
  SAME_FIELD(Head, bytes, T, bytes);     \
  SAME_FIELD(Head, start, T, start);     \
  SAME_FIELD(Head, end, T, end);         \
  SAME_FIELD(Head, device, T, deviceId); \
  SAME_FIELD(Head, stream, T, streamId); \
  SAME_FIELD(Head, correlation, T, correlationId)

#define SAME_VALUE(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)

// The layouts of CUDA 11.8, which later headers keep beside their own.
CHECK_KERNEL(CUpti_ActivityKernel8);
CHECK_COPY(MemcpyHead, CUpti_ActivityMemcpy5);
CHECK_COPY(MemcpyHead, CUpti_ActivityMemset4);
CHECK_COPY(MemcpyPeerHead, CUpti_ActivityMemcpyPtoP4);
#if CUPTI_API_VERSION >= 19  // CUDA 12.0
CHECK_KERNEL(CUpti_ActivityKernel9);
#endif
#if CUPTI_API_VERSION >= 130000
CHECK_KERNEL(CUpti_ActivityKernel10);
CHECK_COPY(MemcpyHead, CUpti_ActivityMemcpy6);
SAME_FIELD(SubscriberParams, size, CUpti_SubscriberParams, structSize);
SAME_FIELD(SubscriberParams, name, CUpti_SubscriberParams, subscriberName);
SAME_FIELD(SubscriberParams, holder, CUpti_SubscriberParams, oldSubscriberName);
SAME_FIELD(SubscriberParams, holder_size, CUpti_SubscriberParams, oldSubscriberSize);
SAME_VALUE(abi::kHolderBytes, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);
SAME_VALUE(505, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000);
SAME_VALUE(506, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000);
#endif

SAME_FIELD(ExternalCorrelationHead, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME_FIELD(ExternalCorrelationHead, external_id, CUpti_ActivityExternalCorrelation, externalId);
SAME_FIELD(ExternalCorrelationHead, correlation, CUpti_ActivityExternalCorrelation, correlationId);
SAME_FIELD(ApiHead, function, CUpti_ActivityAPI, cbid);
SAME_FIELD(ApiHead, start, CUpti_ActivityAPI, start);
SAME_FIELD(ApiHead, end, CUpti_ActivityAPI, end);
SAME_FIELD(ApiHead, thread, CUpti_ActivityAPI, threadId);
SAME_FIELD(ApiHead, correlation, CUpti_ActivityAPI, correlationId);
SAME_FIELD(ApiHead, return_value, CUpti_ActivityAPI, returnValue);

SAME_VALUE(abi::kSuccess, CUPTI_SUCCESS);
SAME_VALUE(abi::kMaxLimitReached, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME_VALUE(abi::kQueueEmpty, CUPTI_ERROR_QUEUE_EMPTY);
SAME_VALUE(abi::kMultipleSubscribers, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
SAME_VALUE(abi::RecordKind::memcpy, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME_VALUE(abi::RecordKind::memset, CUPTI_ACTIVITY_KIND_MEMSET);
SAME_VALUE(abi::RecordKind::driver, CUPTI_ACTIVITY_KIND_DRIVER);
SAME_VALUE(abi::RecordKind::runtime, CUPTI_ACTIVITY_KIND_RUNTIME);
SAME_VALUE(abi::RecordKind::kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME_VALUE(abi::RecordKind::memcpy_peer, CUPTI_ACTIVITY_KIND_MEMCPY2);
SAME_VALUE(abi::RecordKind::external_correlation, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
SAME_VALUE(abi::kCustom2, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2);
SAME_VALUE(abi::kFlushForced, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000));
static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000));
static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000));
static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000));
static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060));
static_assert(is_launch(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx));
static_assert(is_launch(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz));

}  // namespace
}  // namespace ostinato::cupti
