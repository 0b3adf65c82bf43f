"""The drivers of attachments: how the data plane of a container is made."""
