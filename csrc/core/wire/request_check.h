#pragma once

#include "core/base/result.h"
#include "core/wire/messages.h"

namespace ciranda {

// What a submission must be before it is encoded, and what a decoder believes: kLimit with one
// sentence that names the limit, the tensor and the value, where something does not fit the wire
// format; kInvalidArgument, where it contradicts itself (a broadcast without root, an allgather
// whose first dimension is not kAnyRows, a negative size).
Status check_limits(const RequestSpec& spec, const Contribution& contribution);

// The part of it that is about what must be equal on every rank.
Status check_spec(const RequestSpec& spec);

}  // namespace ciranda
