"""What a job folder says, and how it is changed."""
