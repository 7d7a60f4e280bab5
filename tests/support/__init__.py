"""What several folders of tests share. A helper that serves one folder lies in that folder."""
