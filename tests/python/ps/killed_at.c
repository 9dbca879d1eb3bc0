// Kills the process at its n-th call of those by which it speaks with other processes or keeps
// something: preloaded, so that the code under test knows nothing of it. KILLED_AT has n from the
// start; killed_at(n) begins to count anew, 0 ends it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left;

void killed_at(long n) {
  atomic_store(&left, n);
}

__attribute__((constructor)) static void begin(void) {
  const char* n = getenv("KILLED_AT");
  if (n != NULL) killed_at(atol(n));
}

static void count(void) {
  if (atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1) kill(getpid(), SIGKILL);
}

#define COUNTED(result, name, parameters, arguments)                        \
  result name parameters {                                                  \
    static result(*next) parameters;                                        \
    if (next == NULL) next = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
    count();                                                                \
    return next arguments;                                                  \
  }

COUNTED(int, socket, (int a, int b, int c), (a, b, c))
COUNTED(int, bind, (int a, const struct sockaddr* b, socklen_t c), (a, b, c))
COUNTED(int, listen, (int a, int b), (a, b))
COUNTED(int, connect, (int a, const struct sockaddr* b, socklen_t c), (a, b, c))
COUNTED(int, accept4, (int a, struct sockaddr* b, socklen_t* c, int d), (a, b, c, d))
COUNTED(ssize_t, send, (int a, const void* b, size_t c, int d), (a, b, c, d))
COUNTED(ssize_t, recv, (int a, void* b, size_t c, int d), (a, b, c, d))
COUNTED(ssize_t, sendmsg, (int a, const struct msghdr* b, int c), (a, b, c))
COUNTED(ssize_t, recvmsg, (int a, struct msghdr* b, int c), (a, b, c))
COUNTED(ssize_t, write, (int a, const void* b, size_t c), (a, b, c))
COUNTED(ssize_t, writev, (int a, const struct iovec* b, int c), (a, b, c))
COUNTED(ssize_t, pwrite, (int a, const void* b, size_t c, off_t d), (a, b, c, d))
COUNTED(int, poll, (struct pollfd * a, nfds_t b, int c), (a, b, c))
COUNTED(int, ppoll, (struct pollfd * a, nfds_t b, const struct timespec* c, const sigset_t* d),
        (a, b, c, d))
COUNTED(int, epoll_wait, (int a, struct epoll_event* b, int c, int d), (a, b, c, d))
COUNTED(int, ftruncate, (int a, off_t b), (a, b))
COUNTED(int, rename, (const char* a, const char* b), (a, b))
COUNTED(int, unlink, (const char* a), (a))
COUNTED(int, mkdir, (const char* a, mode_t b), (a, b))
COUNTED(int, fsync, (int a), (a))
COUNTED(int, fdatasync, (int a), (a))
COUNTED(int, flock, (int a, int b), (a, b))
COUNTED(int, memfd_create, (const char* a, unsigned b), (a, b))
COUNTED(void*, mmap, (void* a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
