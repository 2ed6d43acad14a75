//! Firestore when it refuses, stays silent, answers late, or is not Firestore at all.
