#pragma once

#include <string>
#include <utility>

#include "core/base/result.h"

namespace ciranda::ps {

inline Error refused(ErrorCode code, std::string why) {
  return {.code = code, .text = std::move(why)};
}

}  // namespace ciranda::ps
