"""Planning: the units of a build, the splits of its documents, and a sample of its inputs."""
