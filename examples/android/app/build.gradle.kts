plugins {
    id("com.android.application")
}

android {
    namespace = "org.example.classifier"
    compileSdk = 35

    defaultConfig {
        applicationId = "org.example.classifier"
        minSdk = 24
        targetSdk = 35
        versionCode = 1
        versionName = "1"
        ndk { abiFilters += "arm64-v8a" } // what the library was compiled for
    }
    externalNativeBuild {
        cmake { path = file("src/main/cpp/CMakeLists.txt") }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }
}
