/* Makes a killed process lose what it wrote to a database and did not sync, as a power failure does.
 *
 * Loaded with LD_PRELOAD. Before a file whose name ends in ".db" or ".db-wal" is changed, what stands
 * there is appended to a file of the same name and ".undo"; a sync of the file empties that. Whoever
 * finds an ".undo" after the process has died applies its records from the last to the first
 * (power.rs). All records have the form: offset, length of the old bytes, old size of the file (64 bits
 * each, of this machine's order), the old bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define FILES 4096

/* The undo file of each descriptor, plus one; 0 for a file that is not watched. */
static int undo_of[FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static int is_watched(const char *path) { return ends_with(path, ".db") || ends_with(path, ".db-wal"); }

static void fail(const char *what) {
  perror(what);
  abort();
}

static void opened(int fd, const char *path) {
  char undo[4096];
  if (fd < 0 || fd >= FILES || !is_watched(path)) return;
  if (snprintf(undo, sizeof undo, "%s.undo", path) >= (int)sizeof undo) fail("path");
  int file = REAL(open)(undo, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) fail("undo");
  pthread_mutex_lock(&lock);
  undo_of[fd] = file + 1;
  pthread_mutex_unlock(&lock);
}

/* Saves the bytes from `offset` on, at most `length`, and the size of the file. Called with the lock. */
static void save(int fd, uint64_t offset, uint64_t length) {
  int undo = undo_of[fd] - 1;
  struct stat stat;
  if (fstat(fd, &stat) != 0) fail("fstat");
  uint64_t size = (uint64_t)stat.st_size;
  uint64_t old = offset >= size ? 0 : size - offset < length ? size - offset : length;
  char *record = malloc(24 + old);
  if (!record) fail("malloc");
  memcpy(record, &offset, 8);
  memcpy(record + 8, &old, 8);
  memcpy(record + 16, &size, 8);
  for (uint64_t done = 0; done < old;) {
    ssize_t n = pread(fd, record + 24 + done, old - done, (off_t)(offset + done));
    if (n <= 0) fail("pread");
    done += (uint64_t)n;
  }
  for (uint64_t done = 0; done < 24 + old;) {
    ssize_t n = REAL(write)(undo, record + done, 24 + old - done);
    if (n <= 0) fail("undo write");
    done += (uint64_t)n;
  }
  free(record);
}

static int is_ours(int fd) { return fd >= 0 && fd < FILES && undo_of[fd] != 0; }

#define OPEN(name)                                                                                 \
  int name(const char *path, int flags, ...) {                                                     \
    va_list arguments;                                                                             \
    va_start(arguments, flags);                                                                    \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? (mode_t)va_arg(arguments, int) : 0;            \
    va_end(arguments);                                                                             \
    int fd = REAL(name)(path, flags, mode);                                                        \
    opened(fd, path);                                                                              \
    return fd;                                                                                     \
  }
OPEN(open)
OPEN(open64)

int close(int fd) {
  pthread_mutex_lock(&lock);
  if (is_ours(fd)) {
    REAL(close)(undo_of[fd] - 1);
    undo_of[fd] = 0;
  }
  pthread_mutex_unlock(&lock);
  return REAL(close)(fd);
}

ssize_t write(int fd, const void *bytes, size_t length) {
  if (!is_ours(fd)) return REAL(write)(fd, bytes, length);
  pthread_mutex_lock(&lock);
  off_t at = lseek(fd, 0, SEEK_CUR);
  if (at < 0) fail("lseek");
  save(fd, (uint64_t)at, length);
  ssize_t n = REAL(write)(fd, bytes, length);
  pthread_mutex_unlock(&lock);
  return n;
}

#define PWRITE(name, offset_type)                                                                  \
  ssize_t name(int fd, const void *bytes, size_t length, offset_type offset) {                     \
    if (!is_ours(fd)) return REAL(name)(fd, bytes, length, offset);                                \
    pthread_mutex_lock(&lock);                                                                     \
    save(fd, (uint64_t)offset, length);                                                            \
    ssize_t n = REAL(name)(fd, bytes, length, offset);                                             \
    pthread_mutex_unlock(&lock);                                                                   \
    return n;                                                                                      \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(name, offset_type)                                                                \
  int name(int fd, offset_type length) {                                                           \
    if (!is_ours(fd)) return REAL(name)(fd, length);                                               \
    pthread_mutex_lock(&lock);                                                                     \
    save(fd, (uint64_t)length, UINT64_MAX);                                                        \
    int result = REAL(name)(fd, length);                                                           \
    pthread_mutex_unlock(&lock);                                                                   \
    return result;                                                                                 \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(name)                                                                                 \
  int name(int fd) {                                                                               \
    if (!is_ours(fd)) return REAL(name)(fd);                                                       \
    pthread_mutex_lock(&lock);                                                                     \
    int result = REAL(name)(fd);                                                                   \
    if (result == 0 && REAL(ftruncate)(undo_of[fd] - 1, 0) != 0) fail("undo truncate");            \
    pthread_mutex_unlock(&lock);                                                                   \
    return result;                                                                                 \
  }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
  int result = REAL(unlink)(path);
  if (result == 0 && is_watched(path)) {
    char undo[4096];
    if (snprintf(undo, sizeof undo, "%s.undo", path) < (int)sizeof undo) REAL(unlink)(undo);
  }
  return result;
}
