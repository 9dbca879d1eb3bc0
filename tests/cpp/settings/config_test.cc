// What could break: a rank that believes the wrong starter, or a typo that is silently ignored.
#include "core/settings/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>

namespace ciranda {
namespace {

Result<Config> read(const std::map<std::string, std::string>& variables, int cores = 2) {
  return read_config(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      cores);
}

TEST(Config, WithoutAStarterTheWorldHasOneRank) {
  const auto config = read({});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().rank_info.size, 1);
  EXPECT_EQ(config.value().starter, "none");
}

TEST(Config, EveryStartersVariablesAreUnderstood) {
  const std::vector<std::map<std::string, std::string>> starters = {
      {{"CIRANDA_RANK", "1"}, {"CIRANDA_SIZE", "3"}},
      {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "3"}},
      {{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "3"}},
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}},
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}}};
  for (const auto& variables : starters) {
    const auto config = read(variables);
    ASSERT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config.value().rank_info.rank, 1);
    EXPECT_EQ(config.value().rank_info.size, 3);
    EXPECT_EQ(config.value().rank_info.local_rank, 1);
    EXPECT_EQ(config.value().rank_info.local_size, 3);
    EXPECT_FALSE(config.value().job_folder.empty());
  }
}

TEST(Config, ALocalRankThatContradictsTheRankIsRefused) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  EXPECT_NE(read(variables).error().text.find("LOCAL_RANK is 1 for rank 0 of 2, and all ranks are "
                                              "on this host; set it to the rank, or say how many"),
            std::string::npos)
      << read(variables).error().text;
  variables = {{"RANK", "3"},           {"WORLD_SIZE", "4"},       {"LOCAL_WORLD_SIZE", "2"},
               {"GROUP_RANK", "1"},     {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"},
               {"MASTER_PORT", "29500"}};
  EXPECT_NE(read(variables).error().text.find("set LOCAL_RANK to count from 0 within each host"),
            std::string::npos)
      << read(variables).error().text;
}

TEST(Config, OurLauncherWinsOverTheOneAroundIt) {
  const auto config = read({{"CIRANDA_RANK", "0"},
                            {"CIRANDA_SIZE", "2"},
                            {"SLURM_PROCID", "5"},
                            {"SLURM_STEP_NUM_TASKS", "8"}});
  EXPECT_EQ(config.value().starter, "ciranda");
  EXPECT_EQ(config.value().rank_info.size, 2);
}

TEST(Config, AStepOfSlurmIsNotItsAllocation) {
  std::map<std::string, std::string> variables = {{"SLURM_PROCID", "0"},
                                                  {"SLURM_LOCALID", "0"},
                                                  {"SLURM_NTASKS", "4"},
                                                  {"SLURM_NTASKS_PER_NODE", "4"},
                                                  {"SLURM_JOB_ID", "7"}};
  EXPECT_EQ(read(variables).value().starter, "none") << "the batch script";

  variables["SLURM_STEP_NUM_TASKS"] = "2";
  variables["SLURM_STEP_NUM_NODES"] = "1";
  variables["SLURM_STEP_ID"] = "0";
  const auto first = read(variables);
  ASSERT_TRUE(first.ok()) << first.error().text;
  EXPECT_EQ(first.value().rank_info.local_size, 2);
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE(first.value().job_folder, read(variables).value().job_folder);
  EXPECT_NE(first.value().job_id, read(variables).value().job_id);
}

// Whatever a starter calls it: rank 3 of 5, the second of two on host 1 of 3.
TEST(Config, StartersOnSeveralHostsTellWhereRankZeroIs) {
  std::map<std::string, std::string> torchrun = {{"RANK", "3"},
                                                 {"WORLD_SIZE", "5"},
                                                 {"LOCAL_RANK", "1"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"GROUP_RANK", "1"},
                                                 {"GROUP_WORLD_SIZE", "3"},
                                                 {"MASTER_ADDR", "node0"},
                                                 {"MASTER_PORT", "29500"}};
  std::map<std::string, std::string> srun = {{"SLURM_PROCID", "3"},
                                             {"SLURM_STEP_NUM_TASKS", "5"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_NODEID", "1"},
                                             {"SLURM_STEP_NUM_NODES", "3"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                             {"SLURM_STEP_NODELIST", "node[0-1],other"},
                                             {"SLURM_JOB_ID", "7"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"PMI_RANK", "3"},  // srun --mpi=pmi2
                                             {"PMI_SIZE", "5"}};
  for (auto* variables : {&torchrun, &srun}) {
    EXPECT_NE(read(*variables).error().text.find("ciranda key FILE"), std::string::npos);
    (*variables)["CIRANDA_KEY_FILE"] = "/a/file";
    const auto config = read(*variables);
    ASSERT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config.value().rank_info.local_rank, 1);
    EXPECT_EQ(config.value().rank_info.local_size, 2);
    EXPECT_EQ(config.value().rank_info.cross_rank, 1);
    EXPECT_EQ(config.value().rank_info.cross_size, 3);
    EXPECT_EQ(config.value().remote.rendezvous.host, "node0");
    EXPECT_GE(config.value().remote.rendezvous.port, 20'000);
    EXPECT_LE(config.value().remote.rendezvous.port, 29'999);
    (*variables)["CIRANDA_PORT_RANGE"] = "4711-4711";
    EXPECT_EQ(read(*variables).value().remote.rendezvous.port, 4711);
  }
  srun["SLURM_NODEID"] = "2";
  srun["SLURM_PROCID"] = "4";
  srun["SLURM_LOCALID"] = "0";
  EXPECT_EQ(read(srun).value().rank_info.local_size, 1);
  for (const char* wrong : {"2(x2", "2", "2(x2),", "6(x3)", "x", ""}) {
    srun["SLURM_STEP_TASKS_PER_NODE"] = wrong;
    EXPECT_NE(read(srun).error().text.find("this is node 2"), std::string::npos) << wrong;
  }
}

TEST(Config, TheFirstHostOfASlurmListHoldsRankZero) {
  std::map<std::string, std::string> srun = {
      {"SLURM_PROCID", "0"},          {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "0"},         {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_NODEID", "0"},          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
      {"CIRANDA_KEY_FILE", "/a/file"}};
  for (const auto& [list, first] :
       std::map<std::string, std::string>{{"a,b", "a"},
                                          {"gpu[03-05,7],a", "gpu03"},
                                          {"n[7,9]", "n7"},
                                          {"r[1-2]n[3-4].org", "r1n3.org"},
                                          {"n[", "n"}}) {
    srun["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(read(srun).value().remote.rendezvous.host, first);
  }
  srun["MASTER_ADDR"] = "192.0.2.1";
  EXPECT_EQ(read(srun).value().remote.rendezvous.host, "192.0.2.1");
}

TEST(Config, MpirunsRanksAreCountedHostByHost) {
  std::map<std::string, std::string> mpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"CIRANDA_KEY_FILE", "/a/file"}};
  EXPECT_NE(read(mpirun).error().text.find("set MASTER_ADDR"), std::string::npos);
  mpirun["MASTER_ADDR"] = "node0";
  EXPECT_EQ(read(mpirun).value().rank_info.cross_rank, 1);
  EXPECT_EQ(read(mpirun).value().rank_info.cross_size, 2);
  mpirun["OMPI_COMM_WORLD_RANK"] = "2";  // --map-by node
  EXPECT_NE(read(mpirun).error().text.find("host by host"), std::string::npos);
}

TEST(Config, ABadValueIsNamedWithWhatItShouldBe) {
  for (const auto& variables : std::vector<std::map<std::string, std::string>>{
           {{"CIRANDA_RANK", "2"}, {"CIRANDA_SIZE", "2"}},
           {{"CIRANDA_RANK", "x"}, {"CIRANDA_SIZE", "2"}},
           {{"CIRANDA_RANK", "0"}, {"CIRANDA_SIZE", "2 "}},
           {{"CIRANDA_SPIN_MICROSECONDS", "-1"}},
           {{"CIRANDA_KEEP_HEAP", "1"}},
           {{"CIRANDA_WIRE_DTYPE", "bf16"}},
           {{"CIRANDA_STREAMS", "0"}},
           {{"CIRANDA_AUTOTUNE", "yes"}},
           {{"CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE", "0"}},
           {{"CIRANDA_OVERLAP", "maybe"}}}) {
    const auto config = read(variables);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(config.error().text.find("environment variable CIRANDA_"), std::string::npos);
    EXPECT_NE(config.error().text.find("should be"), std::string::npos);
  }
}

TEST(Config, GradientsTravelAsTheyAreUnlessTheUserSaysOtherwise) {
  EXPECT_EQ(read({}).value().wire_dtype, std::nullopt);
  EXPECT_EQ(read({{"CIRANDA_WIRE_DTYPE", "float32"}}).value().wire_dtype, std::nullopt);
  EXPECT_EQ(read({{"CIRANDA_WIRE_DTYPE", "float16"}}).value().wire_dtype, DType::kFloat16);
  EXPECT_EQ(read({{"CIRANDA_WIRE_DTYPE", "bfloat16"}}).value().wire_dtype, DType::kBFloat16);
  const Config tuned = read({{"CIRANDA_WIRE_DTYPE", "auto"}}).value();
  EXPECT_EQ(tuned.wire_dtype, std::nullopt);
  EXPECT_TRUE(tuned.autotune.wire_dtype);
}

TEST(Config, OnlyAutotuningUsesMoreStreamsThanTheUserSays) {
  const RingOptions ring = read({{"CIRANDA_STREAMS", "3"}}).value().engine.ring;
  EXPECT_EQ(ring.grain.channels, 3);
  EXPECT_EQ(ring.streams_max, 3);
  const RingOptions tuned =
      read({{"CIRANDA_STREAMS", "3"}, {"CIRANDA_AUTOTUNE", "1"}}).value().engine.ring;
  EXPECT_EQ(tuned.grain.channels, 3);
  EXPECT_EQ(tuned.streams_max, 8);
}

TEST(Config, NothingIsTunedUnlessTheUserSaysSo) {
  EXPECT_FALSE(read({}).value().autotune.on);
  EXPECT_FALSE(read({}).value().autotune.wire_dtype);
  const AutotuneConfig tuned = read({{"HOROVOD_AUTOTUNE", "1"},
                                     {"HOROVOD_AUTOTUNE_LOG", "/tmp/log"},
                                     {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "4"},
                                     {"CIRANDA_AUTOTUNE_WARMUP_SAMPLES", "0"}})
                                   .value()
                                   .autotune;
  EXPECT_TRUE(tuned.on);
  EXPECT_EQ(tuned.log, "/tmp/log");
  EXPECT_EQ(tuned.steps_per_sample, 4);
  EXPECT_EQ(tuned.warmup_samples, 0);
}

TEST(Config, TheHeapIsLeftToAUserWhoTunedIt) {
  EXPECT_TRUE(read({}).value().keep_heap);
  EXPECT_FALSE(read({{"CIRANDA_KEEP_HEAP", "off"}}).value().keep_heap);
  EXPECT_FALSE(read({{"MALLOC_TRIM_THRESHOLD_", "131072"}}).value().keep_heap);
  EXPECT_TRUE(read({{"GLIBC_TUNABLES", "glibc.malloc.check=1"}, {"CIRANDA_KEEP_HEAP", "on"}})
                  .value()
                  .keep_heap);
}

TEST(Config, SeveralHostsNeedARendezvousAndAKey) {
  std::map<std::string, std::string> started = {
      {"CIRANDA_RANK", "3"},       {"CIRANDA_SIZE", "5"},       {"CIRANDA_LOCAL_RANK", "0"},
      {"CIRANDA_LOCAL_SIZE", "2"}, {"CIRANDA_CROSS_RANK", "1"}, {"CIRANDA_CROSS_SIZE", "2"}};
  EXPECT_NE(read(started).error().text.find("need the job's key"), std::string::npos);
  started["CIRANDA_KEY_FILE"] = "/a/file";
  EXPECT_NE(read(started).error().text.find("CIRANDA_RENDEZVOUS to host:port"), std::string::npos);
  started["CIRANDA_RENDEZVOUS"] = "[2001:db8::1]:4711";
  started["CIRANDA_PORT_RANGE"] = "20000-20099";
  started["CIRANDA_NIC"] = "eth*";
  const auto config = read(started);
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config.value().rank_info.cross_rank, 1);
  EXPECT_EQ(config.value().rank_info.cross_size, 2);
  EXPECT_EQ(config.value().remote.rendezvous.host, "2001:db8::1");
  EXPECT_EQ(config.value().remote.rendezvous.port, 4711);
  EXPECT_EQ(config.value().remote.ports.first, 20000);
  EXPECT_EQ(config.value().remote.ports.last, 20099);
  EXPECT_EQ(config.value().remote.nic, "eth*");
  EXPECT_FALSE(config.value().remote.tls);
  started["CIRANDA_TLS"] = "1";
  EXPECT_TRUE(read(started).value().remote.tls);
  started["CIRANDA_TLS"] = "yes";
  EXPECT_NE(read(started).error().text.find("CIRANDA_TLS is 'yes'; it should be"),
            std::string::npos);
  started.erase("CIRANDA_TLS");
  for (const char* wrong : {"node1", "node1:", ":7", "::1:7", "node1:0", "node1:70000"}) {
    started["CIRANDA_RENDEZVOUS"] = wrong;
    EXPECT_NE(read(started).error().text.find("CIRANDA_RENDEZVOUS is '"), std::string::npos);
  }
  started["CIRANDA_RENDEZVOUS"] = "node1:4711";
  started["CIRANDA_PORT_RANGE"] = "20099-20000";
  EXPECT_FALSE(read(started).ok());
}

TEST(Config, OverlapNeedsFreeCoresAndLongSpinningNeedsEnough) {
  const std::map<std::string, std::string> two = {{"CIRANDA_RANK", "0"}, {"CIRANDA_SIZE", "2"}};
  EXPECT_FALSE(read(two, 2).value().engine.pace.overlap);
  EXPECT_TRUE(read(two, 3).value().engine.pace.overlap);
  EXPECT_EQ(read(two, 2).value().engine.pace.spin_ns, 100'000u);
  EXPECT_EQ(read(two, 1).value().engine.pace.spin_ns, 3'000u);
}

TEST(Config, RanksProveTheirOriginWhereOnlyAPortTellsJobsApart) {
  std::map<std::string, std::string> by_hand = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}, {"MASTER_ADDR", "192.0.2.1"}};
  const auto found = read(by_hand);
  EXPECT_TRUE(found.value().prove_origin);
  EXPECT_EQ(found.value().rank_variable, "RANK");
  EXPECT_EQ(found.value().unplaced_master, "192.0.2.1");
  by_hand["CIRANDA_JOB_ID"] = "ours";
  by_hand["LOCAL_WORLD_SIZE"] = "2";
  const auto named = read(by_hand);
  EXPECT_FALSE(named.value().prove_origin);
  EXPECT_NE(named.value().job_folder, found.value().job_folder);
  EXPECT_EQ(named.value().unplaced_master, "");
  EXPECT_FALSE(read({{"CIRANDA_RANK", "0"}, {"CIRANDA_SIZE", "2"}, {"CIRANDA_JOB_ID", "a"}})
                   .value()
                   .prove_origin);
}

TEST(Config, AFolderOfAnotherUserIsNoPlaceToMeet) {
  const auto folder = [](const std::string& runtime) {
    return read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"XDG_RUNTIME_DIR", runtime}})
        .value()
        .job_folder;
  };
  char name[] = "/tmp/ciranda-test-XXXXXX";
  const std::string own = ::mkdtemp(name);
  EXPECT_TRUE(folder(own).starts_with(own + "/"));
  ::chmod(own.c_str(), 0777);
  EXPECT_TRUE(folder(own).starts_with("/tmp/ciranda-" + std::to_string(::geteuid()) + "-"));
  ::rmdir(own.c_str());
}

TEST(Config, JobsOfOneUserMeetInDifferentFolders) {
  const auto folder = [](const std::string& port) {
    return read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}).value().job_folder;
  };
  EXPECT_NE(folder("29500"), folder("29501"));
}

std::map<std::string, std::string> ranks_on(int hosts, const std::string& name,
                                            const std::string& value) {
  std::map<std::string, std::string> variables = {
      {"CIRANDA_RANK", "0"}, {"CIRANDA_SIZE", "2"}, {name, value}};
  if (hosts == 2) {
    variables.insert({{"CIRANDA_LOCAL_RANK", "0"},
                      {"CIRANDA_LOCAL_SIZE", "1"},
                      {"CIRANDA_CROSS_RANK", "0"},
                      {"CIRANDA_CROSS_SIZE", "2"},
                      {"CIRANDA_RENDEZVOUS", "node0:29999"},
                      {"CIRANDA_KEY_FILE", "/a/file"}});
  }
  return variables;
}

TEST(Config, OperationsAreOurOwnUnlessTheUserWantsGloo) {
  const auto cpu_of = [](int hosts, const std::string& name, const std::string& value) {
    const auto config = read(ranks_on(hosts, name, value));
    EXPECT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config.value().engine.backend_choice.gpu, BackendId::kNccl);
    return config.value().engine.backend_choice.cpu;
  };
  constexpr const char* kName = "CIRANDA_CPU_OPERATIONS";
  for (const int hosts : {1, 2}) {
    EXPECT_EQ(cpu_of(hosts, kName, "auto"), BackendId::kNative);
    EXPECT_EQ(cpu_of(hosts, kName, ""), BackendId::kNative);
    EXPECT_EQ(cpu_of(hosts, kName, "gloo"), BackendId::kGloo);
    EXPECT_EQ(cpu_of(hosts, "CIRANDA_GPU_OPERATIONS", "nccl"), BackendId::kNative);
    EXPECT_EQ(cpu_of(hosts, "HOROVOD_GPU_OPERATIONS", "NCCL"), BackendId::kNative);
    EXPECT_EQ(cpu_of(hosts, "HOROVOD_CPU_OPERATIONS", "GLOO"), BackendId::kGloo);
  }
  EXPECT_EQ(cpu_of(1, kName, "shm"), BackendId::kNative);
  EXPECT_EQ(cpu_of(2, kName, "ring"), BackendId::kNative);
}

TEST(Config, OperationsThatCannotBeAreRefusedInOneSentence) {
  struct Mistake {
    int hosts;
    const char* name;
    const char* value;
    const char* sentence;
  };
  for (const Mistake& mistake : {
           Mistake{2, "CIRANDA_CPU_OPERATIONS", "shm", "the ranks are on 2 hosts"},
           Mistake{1, "CIRANDA_CPU_OPERATIONS", "ring", "all ranks are on one host"},
           Mistake{1, "CIRANDA_CPU_OPERATIONS", "mpi", "it should be auto, shm, ring or gloo"},
           Mistake{1, "CIRANDA_GPU_OPERATIONS", "gloo", "gloo is for tensors of the CPU"},
           Mistake{1, "CIRANDA_GPU_OPERATIONS", "cuda", "it should be auto or nccl"},
           Mistake{1, "HOROVOD_CPU_OPERATIONS", "glo", "it should be gloo, mpi, ccl or ddl"},
           Mistake{1, "HOROVOD_GPU_BROADCAST", "x", "it should be nccl, mpi, ccl or ddl"},
           Mistake{1, "CIRANDA_TRUSTED_NETWORK", "yes", "a whole number from 0 to 1"},
       }) {
    const auto config = read(ranks_on(mistake.hosts, mistake.name, mistake.value));
    ASSERT_FALSE(config.ok()) << mistake.value;
    const std::string told =
        std::string("the environment variable ") + mistake.name + " is '" + mistake.value + "'";
    EXPECT_TRUE(config.error().text.starts_with(told)) << config.error().text;
    EXPECT_NE(config.error().text.find(mistake.sentence), std::string::npos) << config.error().text;
  }
}

TEST(Config, HorovodsOtherLibrariesAreWarnedOfAndHorovodrunsOwnChoiceIsNone) {
  const auto mpi = read(ranks_on(1, "HOROVOD_GPU_ALLREDUCE", "MPI"));
  ASSERT_TRUE(mpi.ok()) << mpi.error().text;
  ASSERT_EQ(mpi.value().warnings.size(), 1u);
  EXPECT_TRUE(mpi.value().warnings[0].starts_with("HOROVOD_GPU_ALLREDUCE=MPI has no effect"));
  EXPECT_EQ(read(ranks_on(1, "HOROVOD_CPU_OPERATIONS", "ccl")).value().warnings.size(), 1u);

  const auto started =
      read({{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}, {"HOROVOD_CPU_OPERATIONS", "gloo"}});
  EXPECT_EQ(started.value().engine.backend_choice.cpu, BackendId::kNative);
  auto both = ranks_on(1, "HOROVOD_CPU_OPERATIONS", "gloo");
  both["CIRANDA_CPU_OPERATIONS"] = "auto";
  EXPECT_EQ(read(both).value().engine.backend_choice.cpu, BackendId::kNative);
}

TEST(Config, GlooWarnsUnlessItsNetworkIsTrusted) {
  for (const int hosts : {1, 2}) {
    auto gloo = ranks_on(hosts, "CIRANDA_CPU_OPERATIONS", "gloo");
    const auto config = read(gloo);
    ASSERT_EQ(config.value().warnings.size(), 1u);
    const std::string who = hosts == 1 ? "any user of this host" : "everyone who reaches a port";
    EXPECT_NE(config.value().warnings[0].find(who), std::string::npos);
    gloo["CIRANDA_TRUSTED_NETWORK"] = "1";
    EXPECT_TRUE(read(gloo).value().warnings.empty());
  }
}

TEST(Config, GlooIsRefusedWhereTlsIsAsked) {
  auto gloo = ranks_on(2, "CIRANDA_CPU_OPERATIONS", "gloo");
  gloo["CIRANDA_TRUSTED_NETWORK"] = "1";
  gloo["CIRANDA_TLS"] = "1";
  const auto config = read(gloo);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().text.find("it should be 0 with Gloo, which encrypts nothing"),
            std::string::npos)
      << config.error().text;
}

TEST(Config, NcclIsRefusedWhereTlsIsAskedUnlessItsNetworkIsTrusted) {
  const auto refused = [](int hosts, const char* tls, const char* trusted) {
    auto variables = ranks_on(hosts, "CIRANDA_TLS", tls);
    variables["CIRANDA_TRUSTED_NETWORK"] = trusted;
    const auto config = read(variables);
    EXPECT_TRUE(config.ok()) << config.error().text;  // tensors of the CPU may be sent
    return config.value().engine.backend_choice.gpu_refused;
  };
  EXPECT_TRUE(refused(2, "1", "0").starts_with("--tls or CIRANDA_TLS asks for encryption"));
  EXPECT_EQ(refused(2, "1", "1"), "");
  EXPECT_EQ(refused(2, "0", "0"), "");
  EXPECT_EQ(refused(1, "1", "0"), "");
}

TEST(Config, PayloadIsAuthenticatedUnlessTlsDoesItOrTheNetworkIsTrusted) {
  const auto authenticates = [](const char* tls, const char* trusted) {
    auto variables = ranks_on(2, "CIRANDA_TLS", tls);
    variables["CIRANDA_TRUSTED_NETWORK"] = trusted;
    return read(variables).value().engine.ring.authenticates;
  };
  EXPECT_TRUE(authenticates("0", "0"));
  EXPECT_FALSE(authenticates("0", "1"));
  EXPECT_FALSE(authenticates("1", "0"));
}

TEST(Config, ANcclThatBlocksIsRefused) {
  const auto refused = [](const char* blocking) {
    const auto config = read(ranks_on(1, "NCCL_COMM_BLOCKING", blocking));
    EXPECT_TRUE(config.ok()) << config.error().text;  // tensors of the CPU may be sent
    return config.value().engine.backend_choice.gpu_refused;
  };
  EXPECT_TRUE(refused("1").starts_with(
      "the environment variable NCCL_COMM_BLOCKING is '1'; it should be 0 or unset"))
      << refused("1");
  EXPECT_EQ(refused("0"), "");
  EXPECT_EQ(refused(""), "");
}

TEST(Config, AnElasticJobTellsBothVariablesOrNone) {
  auto member = ranks_on(1, "CIRANDA_MEMBER_FD", "7");
  EXPECT_FALSE(read(member).ok());
  member["CIRANDA_INCARNATION"] = "3";
  const auto config = read(member);
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config.value().member.fd, 7);
  EXPECT_EQ(config.value().member.incarnation, 3U);
  member.erase("CIRANDA_MEMBER_FD");
  ASSERT_FALSE(read(member).ok());
  EXPECT_NE(read(member).error().text.find("CIRANDA_INCARNATION is '3'"), std::string::npos);
}

TEST(Config, GlooDoesNotRoundWhatItSends) {
  auto gloo = ranks_on(2, "CIRANDA_CPU_OPERATIONS", "gloo");
  gloo["CIRANDA_WIRE_DTYPE"] = "bfloat16";
  const auto config = read(gloo);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().text.find("it should be float32 with Gloo"), std::string::npos);
}

// Who must know what a variable says.
enum class Of {
  kRank,     // or a host: others need not know
  kAll,      // compared when the ranks meet
  kMeeting,  // the meeting itself fails where it does not fit: places, addresses, the key, TLS
};
struct Variable {
  const char* name;
  Of of;
  const char* one = "";
  const char* other = "";
};
constexpr Variable kVariables[] = {
    {"CIRANDA_CPU_OPERATIONS", Of::kAll, "auto", "gloo"},
    {"HOROVOD_CPU_OPERATIONS", Of::kAll, "mpi", "gloo"},
    {"CIRANDA_WIRE_DTYPE", Of::kAll, "float32", "bfloat16"},
    {"CIRANDA_AUTOTUNE", Of::kAll, "0", "1"},
    {"HOROVOD_AUTOTUNE", Of::kAll, "0", "1"},
    {"CIRANDA_AUTOTUNE_WARMUP_SAMPLES", Of::kAll, "0", "1"},
    {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", Of::kAll, "0", "1"},
    {"CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE", Of::kAll, "1", "2"},
    {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", Of::kAll, "1", "2"},
    // Written by the first rank.
    {"CIRANDA_AUTOTUNE_LOG", Of::kRank, "/a", "/b"},
    {"HOROVOD_AUTOTUNE_LOG", Of::kRank, "/a", "/b"},
    {"CIRANDA_TRUSTED_NETWORK", Of::kAll, "0", "1"},
    {"CIRANDA_STREAMS", Of::kAll, "1", "2"},
    {"CIRANDA_CACHE_CAPACITY", Of::kAll, "0", "4096"},
    {"HOROVOD_CACHE_CAPACITY", Of::kAll, "1", "2"},
    {"CIRANDA_FUSION_THRESHOLD", Of::kAll, "0", "1000000"},
    {"HOROVOD_FUSION_THRESHOLD", Of::kAll, "0", "1000000"},
    // All are NCCL, or refused by the rank that cannot.
    {"CIRANDA_GPU_OPERATIONS", Of::kRank, "auto", "nccl"},
    {"HOROVOD_GPU_OPERATIONS", Of::kRank, "mpi", "nccl"},
    {"HOROVOD_GPU_ALLREDUCE", Of::kRank, "mpi", "nccl"},
    {"HOROVOD_GPU_ALLGATHER", Of::kRank, "mpi", "nccl"},
    {"HOROVOD_GPU_BROADCAST", Of::kRank, "mpi", "nccl"},
    {"HOROVOD_GPU_ALLTOALL", Of::kRank, "mpi", "nccl"},
    {"HOROVOD_GPU_REDUCESCATTER", Of::kRank, "mpi", "nccl"},
    {"NCCL_COMM_BLOCKING", Of::kRank, "0", "1"},
    {"CIRANDA_OVERLAP", Of::kRank, "on", "off"},
    {"OMP_NUM_THREADS", Of::kRank, "1", "64"},
    {"CIRANDA_SPIN_MICROSECONDS", Of::kRank, "0", "50"},
    {"CIRANDA_KEEP_HEAP", Of::kRank, "on", "off"},
    {"MALLOC_TRIM_THRESHOLD_", Of::kRank, "1", "2"},
    {"MALLOC_MMAP_THRESHOLD_", Of::kRank, "1", "2"},
    {"MALLOC_TOP_PAD_", Of::kRank, "1", "2"},
    {"GLIBC_TUNABLES", Of::kRank, "a", "b"},
    // A rank warns of what it waits for; the first whose patience ends ends the job.
    {"CIRANDA_STALL_WARNING_SECONDS", Of::kRank, "0", "5"},
    {"HOROVOD_STALL_CHECK_TIME_SECONDS", Of::kRank, "0", "5"},
    {"HOROVOD_STALL_CHECK_DISABLE", Of::kRank, "0", "1"},
    {"CIRANDA_STALL_SHUTDOWN_SECONDS", Of::kRank, "0", "5"},
    {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", Of::kRank, "0", "5"},
    {"CIRANDA_START_TIMEOUT_SECONDS", Of::kRank, "5", "6"},
    {"HOROVOD_START_TIMEOUT", Of::kRank, "5", "6"},
    {"CIRANDA_PEER_TIMEOUT", Of::kRank, "5", "6"},
    {"CIRANDA_TIMELINE", Of::kRank, "/a", "/b"},
    {"HOROVOD_TIMELINE", Of::kRank, "/a", "/b"},
    {"CIRANDA_TIMELINE_MARK_CYCLES", Of::kRank, "0", "1"},
    {"HOROVOD_TIMELINE_MARK_CYCLES", Of::kRank, "0", "1"},
    {"CIRANDA_ERROR_FILE", Of::kRank, "/a", "/b"},
    {"CIRANDA_NIC", Of::kRank, "eth0", "eth1"},
    {"CIRANDA_PORT_RANGE", Of::kRank, "20000-20001", "20000-20002"},
    {"CIRANDA_TLS", Of::kMeeting},
    {"CIRANDA_JOB_DIR", Of::kMeeting},
    {"XDG_RUNTIME_DIR", Of::kMeeting},
    {"TMPDIR", Of::kMeeting},
    {"CIRANDA_RENDEZVOUS", Of::kMeeting},
    {"CIRANDA_RENDEZVOUS_FD", Of::kMeeting},
    {"CIRANDA_KEY_FD", Of::kMeeting},
    {"CIRANDA_KEY_FILE", Of::kMeeting},
    {"MASTER_ADDR", Of::kMeeting},
    {"TORCHELASTIC_RUN_ID", Of::kMeeting},
    // Servers compare how many they are with what each worker was told, and know its lives.
    {"CIRANDA_PS_SERVERS", Of::kMeeting},
    {"CIRANDA_PS", Of::kMeeting},
    {"CIRANDA_PS_PATIENCE_SECONDS", Of::kRank, "5", "6"},
    {"CIRANDA_LIFE", Of::kMeeting},
    {"CIRANDA_COORDINATOR", Of::kMeeting},
    // The arbiter knows its processes.
    {"CIRANDA_MEMBER_FD", Of::kMeeting},
    {"CIRANDA_INCARNATION", Of::kMeeting},
};
// Which rank of which job this is, in the words of its starter: for the meeting, too.
const std::set<std::string> kPlace = {
    "CIRANDA_RANK",
    "CIRANDA_SIZE",
    "CIRANDA_LOCAL_RANK",
    "CIRANDA_LOCAL_SIZE",
    "CIRANDA_CROSS_RANK",
    "CIRANDA_CROSS_SIZE",
    "CIRANDA_JOB_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_PORT",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PMI_JOBID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_NODEID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
};

// The variables that read_config() asks for, whoever has started the ranks.
std::set<std::string> asked_for() {
  using Variables = std::map<std::string, std::string>;
  const Variables horovodrun = {{"HOROVOD_RANK", "0"},       {"HOROVOD_SIZE", "2"},
                                {"HOROVOD_LOCAL_RANK", "0"}, {"HOROVOD_LOCAL_SIZE", "1"},
                                {"HOROVOD_CROSS_RANK", "0"}, {"HOROVOD_CROSS_SIZE", "2"},
                                {"CIRANDA_KEY_FILE", "/a"},  {"MASTER_ADDR", "node0"}};
  const Variables torchrun = {{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "1"},
                              {"GROUP_RANK", "0"},
                              {"GROUP_WORLD_SIZE", "2"},
                              {"CIRANDA_KEY_FILE", "/a"},
                              {"MASTER_ADDR", "node0"}};
  const Variables mpirun = {
      {"OMPI_COMM_WORLD_RANK", "0"},       {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
      {"CIRANDA_KEY_FILE", "/a"},          {"MASTER_ADDR", "node0"}};
  const Variables mpiexec = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}};
  const Variables srun = {{"SLURM_PROCID", "0"},          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_LOCALID", "0"},         {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_NODEID", "0"},          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                          {"SLURM_STEP_NODELIST", "a,b"}, {"CIRANDA_KEY_FILE", "/a"}};
  std::set<std::string> asked;
  for (const Variables& variables :
       {Variables(), ranks_on(1, "CIRANDA_JOB_ID", "7"), ranks_on(2, "CIRANDA_JOB_ID", "7"),
        horovodrun, torchrun, mpirun, mpiexec, srun}) {
    const auto config = read_config(
        [&](const char* name) -> const char* {
          asked.insert(name);
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        2);
    EXPECT_TRUE(config.ok()) << config.error().text;
  }
  return asked;
}

using Where = std::vector<std::optional<Endpoint>>;

std::vector<std::string> words_of(const Where& servers) {
  std::vector<std::string> words;
  for (const auto& each : servers) words.push_back(each ? to_string(*each) : "here");
  return words;
}

TEST(Config, ServersAreHereOrCalled) {
  std::map<std::string, std::string> told = {{"CIRANDA_RANK", "1"},
                                             {"CIRANDA_SIZE", "2"},
                                             {"CIRANDA_JOB_ID", "j"},
                                             {"CIRANDA_PS_SERVERS", "here,here"},
                                             {"CIRANDA_LIFE", "4"}};
  const auto here = read(told);
  ASSERT_TRUE(here.ok()) << here.error().text;
  EXPECT_EQ(words_of(here.value().servers), (std::vector<std::string>{"here", "here"}));
  EXPECT_EQ(here.value().life_base, std::uint64_t{4} << 32);
  EXPECT_EQ(here.value().servers_job, "j");
  EXPECT_EQ(here.value().servers_patience_ms, 60'000u);
  told["CIRANDA_PS_PATIENCE_SECONDS"] = "0";
  EXPECT_EQ(read(told).value().servers_patience_ms, 0u);

  told["CIRANDA_PS_SERVERS"] = "here,[fd00::1]:7";
  EXPECT_NE(read(told).error().text.find("need the job's key"), std::string::npos);
  told["CIRANDA_KEY_FILE"] = "/k";
  told["CIRANDA_TLS"] = "1";
  const auto both = read(told);
  ASSERT_TRUE(both.ok()) << both.error().text;
  EXPECT_EQ(words_of(both.value().servers), (std::vector<std::string>{"here", "[fd00::1]:7"}));
  EXPECT_EQ(both.value().remote.key_file, "/k");
  EXPECT_TRUE(both.value().remote.tls);
  EXPECT_FALSE(both.value().engine.ring.authenticates);  // TLS does

  EXPECT_FALSE(both.value().coordinates);
  told["CIRANDA_COORDINATOR"] = "1";
  EXPECT_TRUE(read(told).value().coordinates);

  told["CIRANDA_LIFE"] = "0";
  EXPECT_FALSE(read(told).ok());
  told.erase("CIRANDA_PS_SERVERS");
  told["CIRANDA_LIFE"] = "1";
  EXPECT_NE(read(told).error().text.find("without parameter servers"), std::string::npos);
}

// However its workers are started, and on several hosts without meeting.
TEST(Config, ServersMayBeStartedByHand) {
  const auto alone = read({{"CIRANDA_PS", "a:1,b:2"}, {"CIRANDA_KEY_FILE", "/k"}});
  ASSERT_TRUE(alone.ok()) << alone.error().text;
  EXPECT_EQ(words_of(alone.value().servers), (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(alone.value().servers_job, "by hand");
  EXPECT_TRUE(alone.value().servers_by_hand);
  EXPECT_GT(alone.value().life_base, std::uint64_t{1} << 40);
  auto hosts = ranks_on(2, "CIRANDA_PS", "a:1");
  EXPECT_EQ(read(hosts).value().servers.size(), 1u);

  const auto problem = [](const std::string& servers) {
    return read({{"CIRANDA_PS", servers}, {"CIRANDA_KEY_FILE", "/k"}}).error().text;
  };
  EXPECT_EQ(
      problem("a:1,here"),
      "the environment variable CIRANDA_PS is 'a:1,here'; it should be host:port of each server, "
      "with commas between them");
  std::string many = "a:1";
  for (int i = 0; i < 64; ++i) many += ",a:1";
  EXPECT_NE(problem(many).find("at most 64 servers"), std::string::npos);
}

TEST(Config, ServersThatWereStartedByHandAreToldWhoseTheirWorkersAre) {
  using Variables = std::map<std::string, std::string>;
  const auto origin = [](Variables more) {
    more.merge(Variables{{"CIRANDA_PS", "a:1"}, {"CIRANDA_KEY_FILE", "/k"}});
    const auto config = read(more);
    EXPECT_TRUE(config.ok());
    return std::pair(config.value().origin_job, config.value().prove_origin);
  };
  const auto with = [](Variables all, const std::string& name, const std::string& text) {
    all[name] = text;
    return all;
  };
  const Variables by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(origin(by_hand), std::pair(std::string("29500"), true));
  EXPECT_EQ(origin(with(by_hand, "CIRANDA_JOB_DIR", "/d")), std::pair(std::string("29500"), true));
  EXPECT_EQ(origin(with(by_hand, "CIRANDA_JOB_ID", "ours")), std::pair(std::string("ours"), false));
  EXPECT_EQ(origin(with(by_hand, "TORCHELASTIC_RUN_ID", "r")), std::pair(std::string("r"), true));
  EXPECT_EQ(origin(with(by_hand, "TORCHELASTIC_RUN_ID", "none")), std::pair(std::string(), true));
  EXPECT_EQ(origin({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "0"},
                    {"SLURM_STEP_NUM_NODES", "1"},
                    {"SLURM_STEP_TASKS_PER_NODE", "1"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_STEP_ID", "3"}}),
            std::pair(std::string("7.3"), false));
}

TEST(Config, OnSeveralHostsAllRanksHaveATimelineOrNone) {
  const auto settings = [](const std::map<std::string, std::string>& variables) {
    const auto config = read(variables);
    EXPECT_TRUE(config.ok());
    return shared_settings(config.value());
  };
  EXPECT_NE(settings(ranks_on(2, "CIRANDA_TIMELINE", "/a")),
            settings(ranks_on(2, "CIRANDA_TIMELINE_MARK_CYCLES", "1")));
  EXPECT_EQ(settings({{"CIRANDA_RANK", "1"}, {"CIRANDA_SIZE", "2"}, {"CIRANDA_TIMELINE", "/a"}}),
            settings({{"CIRANDA_RANK", "1"}, {"CIRANDA_SIZE", "2"}}));
}

TEST(Config, EverySettingIsOfARankOrComparedWhenTheRanksMeet) {
  std::set<std::string> known = kPlace;
  for (const Variable& variable : kVariables) {
    known.insert(variable.name);
    if (variable.of == Of::kMeeting) continue;
    const auto settings = [&](const char* value) {
      const auto config = read(ranks_on(2, variable.name, value));
      EXPECT_TRUE(config.ok()) << config.error().text;
      return shared_settings(config.value());
    };
    EXPECT_EQ(settings(variable.one) != settings(variable.other), variable.of == Of::kAll)
        << variable.name;
  }
  EXPECT_EQ(asked_for(), known) << "each needs a line above, and no other has one";
}

}  // namespace
}  // namespace ciranda
