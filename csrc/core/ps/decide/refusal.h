#pragma once

#include <string>
#include <utility>

#include "core/base/result.h"
#include "core/ps/decide/model.h"

namespace ciranda::ps {

inline Error refused(ErrorCode code, std::string why) {
  return {.code = code, .text = std::move(why)};
}

inline Error refused(std::string why) {
  return refused(ErrorCode::kInvalidArgument, std::move(why));
}

// `why`: the end of the sentence.
inline Error refused_push(Worker worker, const std::string& why) {
  return refused(ErrorCode::kInvalidArgument,
                 "a push of worker " + std::to_string(worker) + " " + why);
}

}  // namespace ciranda::ps
