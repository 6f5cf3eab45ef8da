//! Whatever clients and applications do at their worst, at random.
