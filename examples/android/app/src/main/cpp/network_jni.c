/* The native side of Network.java. */
#include <jni.h>
#include <stdint.h>

#include "net.h"

enum { PIXELS = NET_HEIGHT * NET_WIDTH };

_Static_assert(NET_CHANNELS == 3, "pixels have three colours");

JNIEXPORT jint JNICALL Java_org_example_classifier_Network_size(JNIEnv *env, jclass self) {
    (void)env, (void)self;
    return NET_WIDTH;
}

JNIEXPORT jstring JNICALL Java_org_example_classifier_Network_className(JNIEnv *env, jclass self, jint index) {
    (void)self;
    return index >= 0 && index < NET_CLASSES ? (*env)->NewStringUTF(env, net_class_names[index]) : NULL;
}

JNIEXPORT jlong JNICALL Java_org_example_classifier_Network_create(JNIEnv *env, jclass self) {
    (void)env, (void)self;
    return (jlong)(intptr_t)net_create();
}

JNIEXPORT void JNICALL Java_org_example_classifier_Network_destroy(JNIEnv *env, jclass self, jlong handle) {
    (void)env, (void)self;
    net_destroy((net_handle *)(intptr_t)handle);
}

/* Logits of an image of ARGB pixels, row by row; NULL if there are not as many as the network takes, or it fails. */
JNIEXPORT jfloatArray JNICALL Java_org_example_classifier_Network_run(JNIEnv *env, jclass self, jlong handle,
                                                                     jintArray argb) {
    (void)self;
    if (argb == NULL || (*env)->GetArrayLength(env, argb) != PIXELS) return NULL;
    jfloatArray image = (*env)->NewFloatArray(env, NET_CHANNELS * PIXELS);
    jfloatArray logits = (*env)->NewFloatArray(env, NET_CLASSES);
    if (image == NULL || logits == NULL) return NULL;
    jint *pixels = (*env)->GetIntArrayElements(env, argb, NULL);
    jfloat *planes = (*env)->GetFloatArrayElements(env, image, NULL);
    jfloat *answer = (*env)->GetFloatArrayElements(env, logits, NULL);
    int code = NET_NULL_POINTER;
    if (pixels && planes && answer) {
        for (int c = 0; c < NET_CHANNELS; ++c)
            for (int i = 0; i < PIXELS; ++i) {
                float value = (float)((uint32_t)pixels[i] >> (16 - 8 * c) & 255) / 255.0f;
                planes[c * PIXELS + i] = (value - net_mean[c]) / net_std[c];
            }
        code = net_run_with((net_handle *)(intptr_t)handle, 1, planes, answer);
    }
    if (answer) (*env)->ReleaseFloatArrayElements(env, logits, answer, 0);
    if (planes) (*env)->ReleaseFloatArrayElements(env, image, planes, JNI_ABORT);
    if (pixels) (*env)->ReleaseIntArrayElements(env, argb, pixels, JNI_ABORT);
    return code == NET_OK ? logits : NULL;
}
