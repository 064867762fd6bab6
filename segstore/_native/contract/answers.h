/* The native contract: the functions that Python calls, their structs, and their answers; a header for each noun, which
 * build.py joins for cffi.
 *
 * A call takes descriptors, pointers and lengths, and returns a count, or a negative SEG_E_* or -errno. It reads and
 * writes nothing outside the lengths that it was given, whatever the bytes say. Structs are in host order and naturally
 * aligned, so that numpy structured arrays can stand for arrays of them.
 *
 * State is in structs and mappings that the caller owns and passes, and lives as long as these: the end of a log
 * (log.h), published ends (ends.h), what a reader remembers (segment.h). C allocates only threads of directories and
 * their jobs (threads.h) and tables of producers (producers.h), and maps windows (transfer.h): the
 * caller frees each by a call that is declared beside it; and room for batches that are written again, which the same
 * call frees (share_sync.h). The library keeps a table of stretches that were found (transfer.c), a lock of publishers and a
 * count of wakes (ends.c), and which CRC and decoder the processor has. The head of each C file says which threads may
 * call it at once.
 */
#ifndef SEG_CONTRACT_ANSWERS_H
#define SEG_CONTRACT_ANSWERS_H

#include <stdint.h>

/* What a call on a short way gives where anything is not as it nearly always is: nothing was done, and the long
 * way is to be taken. No errno, and none of the numbers below. */
enum { SEG_SLOW = -65536 };

/* What an append gives that is in the log of the leader, while a follower lacks it. */
enum { SEG_BEHIND = -65540 };

/* Why columns could not be encoded, or records not decoded. */
enum {
    SEG_E_ROOM = -10001,    /* the output is too small for one batch */
    SEG_E_COLUMN = -10002,  /* a column's offsets point outside its data, or fall */
    SEG_E_NULL = -10003,    /* a header without a name */
    SEG_E_TOO_LARGE = -10004, /* a batch would not fit an int32 */
    SEG_E_VARINT = -10005,
    SEG_E_RECORD = -10006,  /* a record's length and its content disagree */
    SEG_E_TRAILING = -10007, /* bytes left after the last record */
    SEG_E_FEW = -10008,     /* fewer records than the header says */
    SEG_E_OFFSETS = -10009, /* offsets that don't rise, or don't fit their wrapper */
    SEG_E_NESTED = -10010,  /* a message in a wrapper that is compressed itself, or of another magic */
    SEG_E_CRC = -10011
};

#endif
