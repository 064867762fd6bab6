/* The native contract: the functions that Python calls, their structs, and their answers; a header for each noun, which
 * build.py joins for cffi.
 *
 * A call takes descriptors, pointers and lengths, and returns a count, or a negative SEG_E_* or -errno. It reads and
 * writes nothing outside the lengths that it was given, whatever the bytes say. Structs are in host order and naturally
 * aligned, so that numpy structured arrays can stand for arrays of them.
 *
 * State is in structs and mappings that the caller owns and passes, and lives as long as they do: the end of a log
 * (log.h), published ends (ends.h), a reader's last read (segment.h). C allocates only threads of directories and their
 * jobs (threads.h) and tables of producers (producers.h), and maps windows (transfer.h): the
 * caller frees each by the function declared beside it. Only seg_write_again (share_sync.h) frees its memory itself.
 * The library keeps a table of found stretches (transfer.c), a lock of publishers and a count of wakes (ends.c), and
 * the CRC and decoder functions for this processor. The head of each C file says which threads may call it at once.
 */
#ifndef SEG_CONTRACT_ANSWERS_H
#define SEG_CONTRACT_ANSWERS_H

#include <stdint.h>

/* The answer of a fast path to a call that it does not handle: nothing was done, and the caller takes the slow path. It
 * is no errno, and none of the numbers below. */
enum { SEG_SLOW = -65536 };

/* The answer to an append that is in the leader's log, but not in every follower's, is SEG_UNREPLICATED less its offset. */
enum { SEG_UNREPLICATED = -65540 };

/* Errors of encoding columns, and of decoding records. */
enum {
    SEG_E_ROOM = -10001,    /* the output is too small for one batch */
    SEG_E_COLUMN = -10002,  /* a column's offsets point outside its data, or fall */
    SEG_E_NULL = -10003,    /* a header without a name */
    SEG_E_TOO_LARGE = -10004, /* a batch would not fit an int32 */
    SEG_E_VARINT = -10005,
    SEG_E_RECORD = -10006,  /* a record's length and its content disagree */
    SEG_E_TRAILING = -10007, /* bytes are left after the last record */
    SEG_E_FEW = -10008,     /* fewer records than the header says */
    SEG_E_OFFSETS = -10009, /* offsets that don't rise, or don't fit their wrapper */
    SEG_E_NESTED = -10010,  /* a message in a wrapper that is compressed itself, or of another magic */
    SEG_E_CRC = -10011
};

#endif
