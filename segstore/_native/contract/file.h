/* Files: descriptors, and loops over the system calls (descriptors.c, io.c). */
#ifndef SEG_CONTRACT_FILE_H
#define SEG_CONTRACT_FILE_H

#include <stdint.h>

/* The result of stat(2); times in ns since the epoch. `allocated` is the size of the file's blocks in bytes. */
typedef struct seg_status {
    uint64_t inode;
    int64_t mode, size, links, modified, changed, allocated;
} seg_status;

/* --- descriptors.c: a slot is two descriptors that Python's memory owns, -1 for none; 0, -errno --- */
/* Open a file, and put the result of fstat(2) into *found, unless it is NULL. */
int64_t seg_open(int32_t *slot, const char *path, int32_t flags, int32_t mode, seg_status *found);
int64_t seg_open_pipe(int32_t *slot); /* read end, write end */
/* Open a watch for files that are renamed into a directory. */
int64_t seg_watch(int32_t *slot, const char *directory);
/* Close both open descriptors; -errno of the first that fails, and both are closed then, too. */
int64_t seg_close(int32_t *slot);

/* --- io.c: full loops over the system calls; -errno on failure ------------ */
int64_t seg_pwrite(int fd, const uint8_t *buf, int64_t len, int64_t offset);
int64_t seg_pwritev(int fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t offset);
int64_t seg_pread(int fd, uint8_t *buf, int64_t len, int64_t offset); /* short only at the end of the file */
/* *failed, unless it is NULL, gets errno on failure; no other function sets it. */
int64_t seg_fdatasync(int fd, int32_t *failed);

/* Get the result of stat(2): 0. */
int64_t seg_fstat(int fd, seg_status *out);
int64_t seg_stat(const char *path, int32_t follow, seg_status *out);
/* Three numbers that no copy of a file has: its device, its inode, and the time of its birth in ns. If the system
 * does not know its birth: with or_change the last change of its bytes or names, else 0. A link is not followed. 0,
 * -errno. */
int64_t seg_which(const char *path, int32_t or_change, int64_t *out);
/* The kind of a file's file system by statfs(2) (f_type), at least 0; -errno. */
int64_t seg_file_system(const char *path);
/* Have btrfs write a file, still empty, in place, without a copy for each write: 0, -errno. */
int64_t seg_no_copy_on_write(int fd);
/* The path without links, as realpath(3), at most 4,096 bytes with the final zero. 0, -errno. */
int64_t seg_realpath(const char *path, char *out);
/* Have the kernel begin to write the dirty pages of these bytes; a later seg_fdatasync waits for it. */
int64_t seg_start_sync(int fd, int64_t offset, int64_t len);
int64_t seg_fallocate(int fd, int64_t offset, int64_t len);
/* Put a shared mapping of the file's first len bytes in place of the anonymous mapping of len bytes at `address`:
 * Python's mmap would keep a descriptor open for each mapping. 0. */
int64_t seg_map(void *address, int64_t len, int fd, int32_t write);

/* Copy bytes from file to file. Returns their number, which is smaller at the end of the source. Blocks are shared if
 * both positions are multiples of the block size and the file system can. An error after some bytes is left to the next
 * call. */
int64_t seg_copy_range(int out, int64_t out_offset, int in, int64_t offset, int64_t count);

#endif
