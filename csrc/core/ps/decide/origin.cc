#include "core/ps/decide/origin.h"

#include "core/ps/decide/model_codec.h"

namespace ciranda::ps {

std::string difference(const Origin& first, const Origin& second) {
  if (!first.job.empty() && !second.job.empty() && first.job != second.job) {
    return "its job is '" + second.job + "', not '" + first.job + "'";
  }
  const bool known =
      first.host != 0 && first.host == second.host && first.starter != 0 && second.starter != 0;
  if (!known || first.starter == second.starter || first.starter == second.process ||
      second.starter == first.process) {
    return "";
  }
  return "another process started it";
}

void write(Writer& out, const Origin& origin) {
  write_text(out, origin.job, kJobIdBytesMax);
  out.u64(origin.host);
  out.u64(origin.process);
  out.u64(origin.starter);
}

void read(Reader& in, Origin& origin) {
  origin.job = read_text(in, "enter.origin.job", kJobIdBytesMax);
  origin.host = in.u64("enter.origin.host");
  origin.process = in.u64("enter.origin.process");
  origin.starter = in.u64("enter.origin.starter");
}

}  // namespace ciranda::ps
