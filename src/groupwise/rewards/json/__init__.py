"""JSON documents: judged by a schema."""
