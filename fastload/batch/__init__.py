"""Stand-ins for `after_batch`, by the user's choice alone: each file is one."""
