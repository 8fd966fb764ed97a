"""What each verb does, from requests to results."""
