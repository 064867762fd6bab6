/* Full loops over the system calls of reading, writing and copying files.
 *
 * Thread contract: no state; positions are arguments, so that any number of threads
 * may use one descriptor. Calls on files are completed after EINTR, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "contract/batch.h"
#include "contract/file.h"
#include "contract/index.h"
#include "contract/segment.h"
#include "entry.h"
#include "message.h"
#include "system.h"

enum {
    VECTOR = 1024, /* IOV_MAX of Linux */
    LENGTH_MIN = HEADER - LOG_OVERHEAD, /* of a batch without records */
    CHUNK = 4096 + 64, /* bytes of a read for headers: a batch of a page, and the next header */
    AHEAD = 64, /* bytes of a read for one header */
    COPY_WINDOW = 1 << 20, /* bytes of a source that are mapped at once, so that they stay in a processor's cache */
    SHARED_BLOCK = 4096, /* the least block that file systems share between files */
    SEEK_ERROR = -10100
};

/* The kernel moves at most 0x7ffff000 bytes a call. */
static size_t one_call(int64_t len)
{
    return len > 0x7ffff000 ? 0x7ffff000 : (size_t)len;
}

int64_t seg_pwrite(int fd, const uint8_t *buf, int64_t len, int64_t offset)
{
    for (int64_t done = 0; done < len;) {
        ssize_t r = pwrite(fd, buf + done, one_call(len - done), offset + done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += r;
    }
    return len;
}

int64_t seg_pwritev(int fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t offset)
{
    struct iovec vector[VECTOR];
    int64_t done = 0, within = 0; /* within: bytes of bufs[i] written */
    for (int64_t i = 0; i < n;) {
        int parts = 0;
        for (int64_t j = i, skip = within; j < n && parts < VECTOR; j++, skip = 0) {
            if (lens[j] < 0)
                return -EINVAL;
            if (lens[j] == skip)
                continue;
            vector[parts].iov_base = (void *)(uintptr_t)(bufs[j] + skip);
            vector[parts++].iov_len = (size_t)(lens[j] - skip);
        }
        if (parts == 0)
            break;
        ssize_t r = pwritev(fd, vector, parts, offset + done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += r;
        for (within += r; i < n && within >= lens[i]; i++)
            within -= lens[i];
    }
    return done;
}

int64_t seg_pread(int fd, uint8_t *buf, int64_t len, int64_t offset)
{
    int64_t done = 0;
    while (done < len) {
        ssize_t r = pread(fd, buf + done, one_call(len - done), offset + done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        done += r;
    }
    return done;
}

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t tell(const struct stat *found, seg_status *out)
{
    out->mode = found->st_mode;
    out->size = found->st_size;
    out->inode = found->st_ino;
    out->links = found->st_nlink;
    out->modified = nanoseconds(found->st_mtim);
    out->changed = nanoseconds(found->st_ctim);
    out->allocated = (int64_t)found->st_blocks * 512;
    return 0;
}

int64_t seg_fstat(int fd, seg_status *out)
{
    struct stat found;
    return fstat(fd, &found) < 0 ? -errno : tell(&found, out);
}

int64_t seg_stat(const char *path, int32_t follow, seg_status *out)
{
    struct stat found;
    int failed = follow ? stat(path, &found) : lstat(path, &found);
    return failed < 0 ? -errno : tell(&found, out);
}

int64_t seg_which(const char *path, int32_t or_change, int64_t *out)
{
    struct stat found;
    if (lstat(path, &found) < 0)
        return -errno;
    struct timespec born = {0};
    if (or_change)
        born = found.st_ctim;
    birth_of(path, &found, &born);
    out[0] = (int64_t)found.st_dev;
    out[1] = (int64_t)found.st_ino;
    out[2] = nanoseconds(born);
    return 0;
}

int64_t seg_file_system(const char *path)
{
    return file_system(path);
}

int64_t seg_no_copy_on_write(int fd)
{
    return no_copy_on_write(fd);
}

int64_t seg_realpath(const char *path, char *out)
{
    return realpath(path, out) == NULL ? -errno : 0;
}

/* Never repeated after an error: a second call may succeed over lost pages. */
int64_t seg_fdatasync(int fd, int32_t *failed)
{
    if (sync_data(fd) == 0)
        return 0;
    int error = errno;
    if (failed)
        *failed = error;
    return -error;
}

int64_t seg_start_sync(int fd, int64_t offset, int64_t len)
{
    return start_sync(fd, offset, len) < 0 ? -errno : 0;
}

int64_t seg_fallocate(int fd, int64_t offset, int64_t len)
{
    int r;
    do
        r = allocate(fd, offset, len);
    while (r == EINTR);
    return -r;
}

int64_t seg_map(void *address, int64_t len, int fd, int32_t write)
{
    int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = mmap(address, (size_t)len, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    return p == MAP_FAILED ? -errno : 0;
}

/* --- seek ------------------------------------------------------------ */

/* 0, or the fault of an entry of magic 0 or 1 as one above `previous`. */
static int64_t read_message_header(const uint8_t *h, int64_t there, int64_t previous, seg_batch *out)
{
    int32_t bad = message_verdict(h, there, previous);
    if (bad)
        return SEEK_ERROR - bad;
    parse_message(h, out->position, previous < 0 ? UNKNOWN : previous, out);
    return 0;
}

/* 0, or the fault of these bytes as the header of a batch above `previous`; `there` of them are in the file. */
static int64_t read_header(const uint8_t *h, int64_t there, int64_t previous, seg_batch *out)
{
    if (there < MESSAGE_LEAST)
        return SEEK_ERROR - SEG_SHORT;
    int32_t length = get32(h + AT_LENGTH);
    if (length < MESSAGE_LEAST - LOG_OVERHEAD || length > INT32_MAX - LOG_OVERHEAD)
        return SEEK_ERROR - SEG_BAD_LENGTH;
    if (UNLIKELY(h[AT_MAGIC] != MAGIC))
        return read_message_header(h, there, previous, out);
    if (there < HEADER)
        return SEEK_ERROR - SEG_SHORT;
    int32_t delta = get32(h + AT_LAST_DELTA);
    if (length < LENGTH_MIN)
        return SEEK_ERROR - SEG_BAD_LENGTH;
    out->magic = MAGIC;
    out->base_offset = get64(h);
    if (delta < 0 || out->base_offset <= previous || out->base_offset > INT64_MAX - delta)
        return SEEK_ERROR - SEG_BAD_OFFSETS;
    out->last_offset = out->base_offset + delta;
    out->size = LOG_OVERHEAD + length;
    out->leader_epoch = get32(h + AT_EPOCH);
    out->crc = (uint32_t)get32(h + AT_CRC);
    out->attributes = get16(h + AT_ATTRIBUTES);
    out->base_timestamp = get64(h + AT_BASE_TIMESTAMP);
    out->max_timestamp = get64(h + AT_MAX_TIMESTAMP);
    out->producer_id = get64(h + AT_PRODUCER_ID);
    out->producer_epoch = get16(h + AT_PRODUCER_EPOCH);
    out->base_sequence = get32(h + AT_BASE_SEQUENCE);
    out->count = get32(h + AT_COUNT);
    return 0;
}

/* Reads headers of one file, below byte `end`; if batches are small, one chunk has several. */
typedef struct headers {
    int fd;
    int64_t end, reads;          /* reads: calls of pread */
    int64_t at, len, ahead;      /* the chunk, and the bytes of the next one */
    uint8_t chunk[CHUNK];
} headers;

/* The chunk's memory is not initialised: it is read only after it was filled. */
static void begin(headers *h, int fd, int64_t end)
{
    h->fd = fd;
    h->end = end;
    h->reads = h->at = h->len = 0;
    h->ahead = AHEAD;
}

/* Read the header of the batch at `position`, with offsets above `previous`: 0, or its fault. */
static int64_t header_at(headers *h, int64_t position, int64_t previous, seg_batch *out)
{
    out->position = position;
    int64_t there = position < h->at ? 0 : h->at + h->len - position;
    if (there < HEADER && (there <= 0 || h->at + h->len < h->end)) {
        int64_t left = h->end - position, want = h->ahead < left ? h->ahead : left;
        h->at = position;
        h->reads++;
        h->len = seg_pread(h->fd, h->chunk, want, position);
        if (h->len < 0)
            return h->len;
        there = h->len;
    }
    int64_t bad = read_header(h->chunk + (position - h->at), there, previous, out);
    if (bad)
        return bad;
    /* Several small batches fit one read; for larger ones only the header is read. */
    h->ahead = out->size < 1024 ? CHUNK : AHEAD;
    return out->size > h->end - position ? SEEK_ERROR - SEG_SHORT : 0;
}

/* Seek as seg_seek. A wrapper that comes first begins at offset `least` or above; -1: it may hold the target. */
static int64_t seek(headers *h, int64_t position, int64_t least, int64_t target, seg_batch *out)
{
    for (int64_t previous = -1; position < h->end; position += out->size) {
        int64_t bad = header_at(h, position, previous, out);
        if (bad)
            return bad;
        if (UNLIKELY(out->magic != MAGIC) && previous < 0 && out->attributes & CODEC_MASK) {
            int64_t first = least < 0 ? target : least;
            out->base_offset = first < out->last_offset ? first : out->last_offset;
        }
        if (out->last_offset >= target)
            return 1;
        previous = out->last_offset;
    }
    return 0;
}

int64_t seg_seek(int fd, int64_t position, int64_t end, int64_t target, seg_batch *out)
{
    headers h;
    begin(&h, fd, end);
    return seek(&h, position, -1, target, out);
}

int64_t seg_read_headers(int fd, int64_t position, int64_t end, int64_t least, seg_batch *out, int64_t n)
{
    int64_t found = 0;
    headers h;
    begin(&h, fd, end);
    while (found < n && seek(&h, position, least, 0, out + found) == 1 && out[found].base_offset >= least) {
        position += out[found].size;
        least = out[found++].last_offset + 1;
    }
    return found;
}

int64_t seg_attributes(int fd, int64_t position, int64_t end)
{
    int64_t all = 0, bad;
    seg_batch batch;
    headers h;
    begin(&h, fd, end);
    for (int64_t previous = -1; position < end; position += batch.size) {
        if ((bad = header_at(&h, position, previous, &batch)) != 0)
            return bad;
        all |= (uint16_t)batch.attributes | (batch.magic == MAGIC ? 0 : SEG_OLD);
        previous = batch.last_offset;
    }
    return all;
}

/* --- stretch --------------------------------------------------------- */

/* The slot of the last entry whose batch begins at or below `most`, or -1. */
static int64_t last_up_to(const seg_segment *s, int64_t most)
{
    int64_t low = 0, high = s->entries;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (position_of(s, middle) <= most)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* Read the batch that an index entry points to; 0 if it does not match the entry. */
static int at_entry(headers *h, const seg_segment *s, int64_t slot, seg_batch *batch)
{
    int64_t position = position_of(s, slot), last = s->base_offset + relative_of(s, slot);
    return position >= 0 && position < s->end && !header_at(h, position, -1, batch) && batch->last_offset == last;
}

/* The bytes to read for a search for `offset` from an index entry: enough for the header of another batch that may hold
 * the offset. */
static int64_t ahead_of(const seg_segment *s, int64_t slot, int64_t offset)
{
    int64_t most = 2 * CHUNK; /* between two entries the first batch has about half of this, or less */
    int holds = s->base_offset + relative_of(s, slot) == offset;
    return holds || position_of(s, slot + 1) - position_of(s, slot) > most ? AHEAD : CHUNK;
}

/* Find the batch that holds `offset`, or the next one. */
static int find_first(headers *h, const seg_segment *s, int64_t from, int64_t offset, seg_batch *first)
{
    if (from < 0) {
        int64_t slot = seg_offset_slot(s->index, s->entries, offset - s->base_offset);
        if (slot >= 0)
            h->ahead = ahead_of(s, slot, offset);
        if (slot >= 0 && !at_entry(h, s, slot, first))
            return 0;
        if (slot >= 0 && first->last_offset >= offset)
            return 1;
        from = slot >= 0 ? first->position + first->size : 0;
    }
    return seek(h, from, -1, offset, first) == 1;
}

/* Whether an index entry saves the walk from *first to *hint, which begins at or below `most`. */
static int skips(headers *h, const seg_segment *s, int64_t most, const seg_batch *first, seg_batch *hint)
{
    int64_t slot = last_up_to(s, most);
    return slot >= 0 && position_of(s, slot) > first->position + first->size && at_entry(h, s, slot, hint) &&
           hint->base_offset > first->last_offset && hint->base_offset < s->end_offset;
}

/* Find the end of the stretch that *batch belongs to, or after which *batch begins if it is not the first. */
static void find_stop(headers *h, const seg_segment *s, int64_t most, const seg_batch *batch, seg_found *out)
{
    seg_batch next;
    out->stop = batch->position;
    out->next_offset = batch->base_offset;
    if (batch->position > out->position && batch->position + batch->size > most) {
        out->first = 0;
        out->final = 1;
        return;
    }
    out->stop += batch->size;
    out->next_offset = batch->last_offset + 1;
    while (out->stop < most && !header_at(h, out->stop, -1, &next)) {
        int rises = next.base_offset >= out->next_offset && next.base_offset < s->end_offset;
        out->final |= rises && out->stop + next.size > most;
        if (!rises || out->stop + next.size > most)
            break;
        out->stop += next.size;
        out->next_offset = next.last_offset + 1;
    }
}

int64_t seg_find_stretch(int fd, const seg_segment *s, int64_t from, int64_t offset, int64_t max_bytes,
                         seg_found *out)
{
    headers h;
    seg_batch first, hint;
    begin(&h, fd, s->end);
    int found = find_first(&h, s, from, offset, &first) && first.base_offset <= offset;
    if (found) {
        int64_t room = s->end - first.position, most = first.position + (max_bytes < room ? max_bytes : room);
        int far = most > first.position + first.size && skips(&h, s, most, &first, &hint);
        out->position = first.position;
        out->first = first.size;
        out->final = 0;
        find_stop(&h, s, most, far ? &hint : &first, out);
        out->final |= out->stop - out->position >= max_bytes;
    }
    out->reads = h.reads;
    return found;
}

/* Copy from a mapping by write(2): each byte is copied once, from page to page, in two thirds of the time of
 * copy_file_range(2), which copies through a pipe if no blocks are shared. Only the kernel reads the mapping: if the
 * source is cut, fewer bytes are copied, and no SIGBUS comes. */
static int64_t copy_mapped(int out, int64_t out_offset, int in, int64_t offset, int64_t count)
{
    int64_t page = sysconf(_SC_PAGESIZE), sent = 0, put = 0;
    struct stat source;
    if (fstat(in, &source) < 0)
        return -errno;
    count = count < source.st_size - offset ? count : source.st_size - offset;
    while (sent < count) {
        int64_t lead = (offset + sent) % page, n = count - sent < COPY_WINDOW ? count - sent : COPY_WINDOW;
        size_t mapped = (size_t)(lead + n);
        uint8_t *p = mmap(NULL, mapped, PROT_READ, MAP_SHARED | MAP_POPULATE, in, offset + sent - lead);
        if (p == MAP_FAILED)
            break;
        put = seg_pwrite(out, p + lead, n, out_offset + sent);
        munmap(p, mapped);
        if (put < 0)
            break;
        sent += n;
    }
    /* After the end of a file that was cut, the bytes of its last page read as zeros. */
    if (fstat(in, &source) < 0)
        return -errno;
    int64_t left = source.st_size > offset ? source.st_size - offset : 0;
    sent = sent < left ? sent : left;
    return put < 0 && put != -EFAULT && !sent ? put : sent;
}

int64_t seg_copy_range(int out, int64_t out_offset, int in, int64_t offset, int64_t count)
{
    int64_t sent = 0;
    if (offset < 0 || out_offset < 0)
        return -EINVAL;
    if (offset % SHARED_BLOCK || out_offset % SHARED_BLOCK) {
        sent = copy_mapped(out, out_offset, in, offset, count);
        if (sent < 0)
            return sent;
    }
    off_t from = offset + sent, to = out_offset + sent;
    while (sent < count) {
        ssize_t r = copy_range(in, &from, out, &to, one_call(count - sent));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return sent ? sent : -errno;
        if (r == 0)
            break;
        sent += r;
    }
    return sent;
}
