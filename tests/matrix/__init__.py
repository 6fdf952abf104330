"""What the matrix is made of, and the page that tells how it went."""
