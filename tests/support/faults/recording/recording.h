/* What trace.c offers to calls.c: see there. */
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define PATHS (2 * PATH_MAX)

#pragma GCC visibility push(hidden) /* no name of these stands for one of the program */

extern int mapped; /* how many mappings there are */

/* Take the lock under which a call is made and recorded. What was stored to mappings is recorded first. */
void lock(void);
/* Give it back, with errno as it is, and return the result of the call. */
long unlock(long result);
int is_recording(void);
/* Whether this sync is the one that fails. */
int is_refused(void);

void emit_path(char op, uint64_t inode, const char *a, const char *b);
void emit_sync(char op, uint64_t inode);
/* Record the bytes that are in a file now. */
void emit_range(int fd, uint64_t inode, off_t at, size_t n);
void resized(uint64_t inode, off_t size);

void mapped_to(uint8_t *memory, size_t n, uint64_t inode);
void unmapped(uint8_t *memory, size_t n);
void look_at_file(uint64_t inode);

/* Make a path absolute, and return whether it is below the root. */
int is_ours(int at, const char *path, char *full);
/* Return whether a descriptor is of a file, or of a directory, below the root; `found` is its state. */
int fd_is_ours(int fd, struct stat *found, char *path);

#pragma GCC visibility pop
