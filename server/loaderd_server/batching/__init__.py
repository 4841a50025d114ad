"""What a worker does with a task: order, fetch, transform, collate into a slot."""
