//! Holds the version of librdkafka whose own tests scripts/client_suites runs.
