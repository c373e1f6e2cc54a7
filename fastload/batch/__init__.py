"""Stand-ins for `after_batch`, by the user's choice alone: each file without an underscore is one."""
