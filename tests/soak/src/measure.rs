//! The resource use of a process, and its growth.

use crate::ALLOCATOR;
use serde::{Deserialize, Serialize};
use std::{fs, io, time::Duration};
use tokio::runtime::Handle;

/// The resource use of the server at one moment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Resident memory in KiB, without file pages.
    pub(crate) memory: u64,
    /// Allocated memory in KiB. Resident memory is larger, because an allocator keeps some freed
    /// memory.
    pub(crate) heap: u64,
    pub(crate) files: usize,
    pub(crate) tasks: usize,
}

impl Status {
    /// Measures this process.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
            .ok_or_else(|| io::Error::other("no RssAnon in /proc/self/status"))?;
        let heap = ALLOCATOR.stats();
        let heap = heap.bytes_allocated.saturating_sub(heap.bytes_deallocated);
        Ok(Self {
            memory,
            heap: heap as u64 / 1024,
            files: fs::read_dir("/proc/self/fd")?.count(),
            tasks: Handle::current().metrics().num_alive_tasks(),
        })
    }

    pub(crate) fn memory_mib(&self) -> f64 {
        self.memory as f64 / 1024.0
    }

    pub(crate) fn heap_mib(&self) -> f64 {
        self.heap as f64 / 1024.0
    }
}

/// The measurements of a run, in order.
#[derive(Default)]
pub(crate) struct Samples(Vec<(Duration, Status)>);

impl Samples {
    pub(crate) fn push(&mut self, at: Duration, status: &Status) {
        self.0.push((at, *status));
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn most_memory_mib(&self) -> f64 {
        let memory = self.0.iter().map(|(_, status)| status.memory_mib());
        memory.fold(0.0, f64::max)
    }

    pub(crate) fn most_heap_mib(&self) -> f64 {
        let heap = self.0.iter().map(|(_, status)| status.heap_mib());
        heap.fold(0.0, f64::max)
    }

    pub(crate) fn most_files(&self) -> usize {
        let files = self.0.iter().map(|(_, status)| status.files);
        files.max().unwrap_or_default()
    }

    /// Returns the slope of the regression line through the memory of the second half, in MiB per
    /// hour.
    pub(crate) fn slope_of_second_half(&self) -> f64 {
        let half = self.0.get(self.0.len() / 2..).unwrap_or_default();
        let n = half.len().max(1) as f64;
        let hours = |at: &Duration| at.as_secs_f64() / 3600.0;
        let mean_x = half.iter().map(|(at, _)| hours(at)).sum::<f64>() / n;
        let mean_y = half.iter().map(|(_, it)| it.memory_mib()).sum::<f64>() / n;
        let (mut over, mut under) = (0.0, 0.0);
        for (at, status) in half {
            let x = hours(at) - mean_x;
            over += x * (status.memory_mib() - mean_y);
            under += x * x;
        }
        if under == 0.0 { 0.0 } else { over / under }
    }
}
