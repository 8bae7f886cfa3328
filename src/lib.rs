//! kvferry moves the KV cache of large language models from prefill to decode workers.
