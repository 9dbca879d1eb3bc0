// The programs of this folder in one, as `programs NAME [ARGUMENT...]`: torch's headers take longer
// to compile than all of them.
#include <map>
#include <string>

#if __has_include(<gloo/allreduce.h>)  // LibTorch's header of its own Gloo wants Gloo's
#define USE_C10D_GLOO                  // LibTorch's wheels have it, and do not say so
#include "both_gloos.cc"
#endif
#include "checks.cc"
#include "elastic.cc"
#include "served.cc"
#include "uncaught.cc"

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> programs = {
#ifdef USE_C10D_GLOO
      {"both_gloos", both_gloos::run},
#endif
      {"checks", checks::run},         {"elastic", elastic_job::run},
      {"served", served::run},         {"uncaught", uncaught::run},
  };
  return programs.at(argv[1])(argc - 1, argv + 1);
}
