// Owns the headers that tests/CMakeLists.txt lets all tests read precompiled.
int main() {}
