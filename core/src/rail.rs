//! Rails.
