"""What several Python tests share."""
