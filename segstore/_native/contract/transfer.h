/* Transfers from a file to a sink (transfer.c). */
#ifndef SEG_CONTRACT_TRANSFER_H
#define SEG_CONTRACT_TRANSFER_H

#include <stdint.h>

#include "segment.h"

/* --- transfer.c: from a file to a sink, one system call each: its result, or -errno ----------------- */
enum { SEG_SINK_OTHER = 0, SEG_SINK_FILE = 1, SEG_SINK_PIPE = 2, SEG_SINK_TCP = 3, SEG_SINK_UNIX = 4 };

typedef struct seg_sink {
    int32_t kind;           /* SEG_SINK_*; TCP, UNIX: stream sockets */
    int32_t appends;        /* a file that was opened with O_APPEND */
    int32_t options;        /* calls of getsockopt that it took */
} seg_sink;

/* Find the kind of a descriptor. 0, -errno. */
int64_t seg_look_at(int fd, seg_sink *sink);
int64_t seg_sendfile(int out, int in, int64_t offset, int64_t count);

/* A segment to send from; its end_offset is the log's. */
typedef struct seg_sendable {
    seg_segment segment;
    int64_t below;          /* above all its offsets; if it is less than end_offset, another segment follows */
    int64_t next_offset, next_position; /* the end of the last stretch: the batch with next_offset begins there, if
                                           any */
    const uint8_t *owner;   /* 1 in the one process that may send it, 0 in its children; NULL: any may */
    int64_t remembers;      /* 1: the bytes of its number never change, so that stretches are remembered */
} seg_sendable;

/* The answers of seg_send_stretch besides bytes and errors. SEG_SLOW: nothing was sent, the caller takes the slow path;
 * SEG_PART - n: n bytes of the stretch were sent, fewer than all. */
enum { SEG_PART = -65537 };

/* Find a stretch by the index, or in the table of earlier ones, and send it by seg_sendfile. Returns (bytes << 32 |
 * next offset - offset), SEG_SLOW, SEG_PART - bytes, or -errno of sendfile. Several threads may send at once: they
 * change only next_offset and next_position. SEG_SLOW also if the stretch extends beyond `below`, or may go on in the
 * next segment, and in another process. *found (NULL: not wanted) gets the stretch, or the reads of the search. */
int64_t seg_send_stretch(int sink, int fd, seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *found);

/* One of `in` and `out` is a pipe; offset -1 if it is `in`. `more`: bytes follow at once. */
int64_t seg_splice(int in, int64_t offset, int out, int64_t count, int32_t more);
/* Set the size of a pipe. Returns the size that it has then. */
int64_t seg_pipe_bytes(int pipe, int64_t bytes);
int64_t seg_write(int out, const uint8_t *buf, int64_t len);
/* Copy bytes to the file position of `out`, and move that position. */
int64_t seg_append_range(int out, int in, int64_t offset, int64_t count);

/* A mapped part of a file; zeros: none. */
typedef struct seg_window {
    uint8_t *memory;        /* of the whole mapping */
    int64_t mapped;         /* bytes of it */
    int64_t position;       /* of its first byte in the file */
} seg_window;

/* Map whole pages, with at least the `count` > 0 bytes from `position` on. The window must have none. 0. */
int64_t seg_map_window(seg_window *w, int fd, int64_t position, int64_t count);
int64_t seg_unmap_window(seg_window *w);
/* Write count bytes of the window, from `position` of the file on, by write(2). -EFAULT: the file has been cut below
 * them. */
int64_t seg_write_window(int out, const seg_window *w, int64_t position, int64_t count);

#endif
