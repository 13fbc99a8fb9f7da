"""Operations on a whole cluster: its metadata, compared with the answers of its storage nodes and log servers."""
