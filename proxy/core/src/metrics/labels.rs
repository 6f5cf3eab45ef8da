//! The label sets that are counted separately, shared by the workers.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::lock;
use super::series::Labels;
use crate::record::ExchangeRecord;

/// The label sets of all workers, limited in number.
#[derive(Debug)]
pub(super) struct LabelTable {
    labels: Mutex<HashSet<Arc<Labels>>>,
    pub(super) other: Arc<Labels>,
    pub(super) max: usize,
}

impl LabelTable {
    pub(super) fn new(max: usize) -> Self {
        Self { labels: Mutex::default(), other: Arc::new(Labels::other()), max }
    }

    /// The shared labels of an exchange, or the labels `other` when the table is full.
    pub(super) fn intern(&self, record: &ExchangeRecord<'_>) -> Arc<Labels> {
        let labels = Labels::of(record);
        let mut table = lock(&self.labels);
        if let Some(known) = table.get(&labels) {
            return Arc::clone(known);
        }
        if table.len() >= self.max {
            return Arc::clone(&self.other);
        }
        let labels = Arc::new(labels);
        table.insert(Arc::clone(&labels));
        labels
    }

    /// Removes and returns the labels for which `gone` returns true.
    pub(super) fn take_out(&self, gone: impl Fn(&Labels) -> bool) -> HashSet<Arc<Labels>> {
        lock(&self.labels).extract_if(|labels| gone(labels)).collect()
    }
}
