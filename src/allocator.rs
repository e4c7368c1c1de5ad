//! mimalloc, called the short way.
//!
//! The `mimalloc` crate asks for an aligned block each time, which takes two and a half times the
//! instructions of a plain request; nearly every layout is satisfied by the plain one.

use libmimalloc_sys::{
    mi_collect, mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

/// The process's allocator.
pub struct Allocator;

/// Gives memory that nobody uses back to the system at once. For after the first list of objects, whose
/// reading takes a multiple of what is kept of it; in service the allocator's own pace is the better one.
pub fn give_back() {
    // SAFETY: no precondition; blocks in use are not touched.
    unsafe { mi_collect(true) }
}

/// Whether a plain block is aligned as asked: mimalloc aligns every block of 16 bytes and more to
/// 16, and a smaller one to its size rounded down to a power of two.
fn plain(layout: &Layout) -> bool {
    layout.align() <= 16 && layout.align() <= layout.size()
}

// SAFETY: every block comes from mimalloc with the size and alignment of its layout, and goes back
// to mimalloc, which needs neither to free it.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no precondition.
        unsafe {
            if plain(&layout) {
                mi_malloc(layout.size()).cast()
            } else {
                mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no precondition.
        unsafe {
            if plain(&layout) {
                mi_zalloc(layout.size()).cast()
            } else {
                mi_zalloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller passes a block of ours.
        unsafe { mi_free(block.cast::<c_void>()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of ours; the new size keeps the alignment plain or not.
        unsafe {
            if layout.align() <= 16 && layout.align() <= size {
                mi_realloc(block.cast::<c_void>(), size).cast()
            } else {
                mi_realloc_aligned(block.cast::<c_void>(), size, layout.align()).cast()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_keep_their_content() {
        for size in (1..200).chain([1023, 4096, 65_537, 1 << 20]) {
            for align in [1, 2, 4, 8, 16, 32, 64, 128, 4096] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: layouts are not empty, blocks are used within their size and freed once.
                unsafe {
                    let block = Allocator.alloc(layout);
                    assert!((block as usize).is_multiple_of(align), "{layout:?}");
                    block.write_bytes(7, size);
                    let grown = Allocator.realloc(block, layout, size * 2);
                    assert!((grown as usize).is_multiple_of(align), "{layout:?}");
                    assert!((0..size).all(|i| *grown.add(i) == 7));
                    Allocator.dealloc(grown, Layout::from_size_align(size * 2, align).unwrap());
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert!(
                        (0..size).all(|i| *zeroed.add(i) == 0) && (zeroed as usize).is_multiple_of(align)
                    );
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
