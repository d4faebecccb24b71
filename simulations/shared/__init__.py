"""What several claims share, and what one needs whose file it would make too long."""
