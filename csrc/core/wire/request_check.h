#pragma once

#include "core/base/result.h"
#include "core/wire/messages.h"

namespace ciranda {

// Checks a submission before it is encoded. Returns kLimit, with the limit, the tensor and the
// value, if something does not fit the wire format. Returns kInvalidArgument if the submission
// contradicts itself: a broadcast without root, an allgather whose first dimension is not kAnyRows,
// a negative size. Returns kUnsupported if the backend has no such operation.
Status check_limits(const RequestSpec& spec, const Contribution& contribution);

// Checks the spec alone, with the same errors. Decoders call it too.
Status check_spec(const RequestSpec& spec);

}  // namespace ciranda
