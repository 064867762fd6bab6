/* The bit of a lock's word that says that somebody waits (share_lock.c). */
#ifndef SEG_SHARE_LOCK_H
#define SEG_SHARE_LOCK_H

#define SEG_WAITED 0x80000000u

#endif
